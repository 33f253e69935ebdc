"""Section `runtime`: where and how a stage computes; no stage declares it, and it changes numbers by rounding alone."""

from dataclasses import dataclass

from stages.core.settings.schema import not_empty, setting


@dataclass(frozen=True)
class Runtime:
    """What every stage that computes reads."""

    device: str = setting(not_empty("a torch device is expected, such as cpu or cuda:0"))
    """Torch device: cpu, cuda, cuda:0, mps."""
    threads: int | None = setting(lambda value: None if value is None or value >= 1 else "threads must be at least one, or null")
    """CPU threads; null leaves torch's own choice."""

"""Section `runtime`: where and how a stage computes; no stage declares it, and it changes numbers by rounding alone."""

import re
from dataclasses import dataclass

from stages.core.settings.schema import between, setting

MOST_THREADS = 1024
MOST_ROWS = 2**20


def _device(value: str) -> str | None:
    return None if re.fullmatch(r"cpu|cuda(:\d+)?", value) else "expected cpu, cuda, or one of several such as cuda:1"


@dataclass(frozen=True)
class Runtime:
    """What every stage that computes reads."""

    device: str = setting(_device)
    """Torch device: cpu, cuda or cuda:0 (others lack the float64 that rewards and draws are held in)."""
    threads: int | None = setting(between(1, MOST_THREADS, "threads must be at least one, or null"))
    """CPU threads; null leaves torch's own choice."""
    logits_chunk: int = setting(between(1, MOST_ROWS, "logits_chunk must be at least one row"))
    """Rows of logits, each as long as the vocabulary, that are held at once in training and scoring."""
    activation_checkpointing: bool = setting()
    """Whether layers run again in the backward pass instead of keeping what they computed."""

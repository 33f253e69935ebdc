"""Section `sweep`: what the jobs of a sweep are ranked by; no stage reads it."""

import re
from dataclasses import dataclass

from stages.core.settings.schema import one_of, setting

MAXIMIZE, MINIMIZE = "maximize", "minimize"


def _metric(value: str) -> str | None:
    named = re.fullmatch(r"(?:(?:validate|reward|grpo|evaluate)\.)?[a-z][a-z0-9_]*", value)
    return None if named else "a figure of reports/evaluate.json, or <report>.<figure>, is expected"


@dataclass(frozen=True)
class Sweep:
    """How a sweep compares its jobs."""

    metric: str = setting(_metric)
    """A figure of reports/evaluate.json, or `<report>.<figure>` of another report."""
    direction: str = setting(one_of(MAXIMIZE, MINIMIZE))
    """Whether more of it is better, or less."""

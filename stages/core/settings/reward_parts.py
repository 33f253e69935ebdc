"""An entry of the list that `grpo.reward` may be, and the list that any value of it stands for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.core.reward_functions import NAME
from stages.core.settings.schema import Check, finite_not_zero, not_empty, optional, setting


@dataclass(frozen=True)
class RewardPart:
    """One of several rewards, which add up by their weights."""

    source: str = setting(not_empty("length, the path of a reward artifact, or the name of a function in stages/rewards/ is expected"))
    """What `grpo.reward` names where it is one alone."""
    weight: float = setting(finite_not_zero("weight must be a finite number other than zero"))
    """What its rewards are multiplied by."""
    name: str | None = optional(
        lambda name: None if NAME.fullmatch(name) else "expected letters, digits and underscores, a letter first: it names a column"
    )
    """How reports call it: a function's own name, or the stem of an artifact's file, where it is left out."""
    arguments: dict[str, Any] | None = optional()
    """What a function is given beside the completions, by name."""

    @property
    def called(self) -> str:
        """The name that reports give it."""
        return self.name or re.sub(r"\W", "_", self.source.rpartition("/")[2].removesuffix(".safetensors"))


def parts_of(reward: str | Sequence[RewardPart]) -> list[RewardPart]:
    """The parts that a value of `grpo.reward` stands for: a source alone is one of weight 1."""
    return [RewardPart(reward, 1.0, None, None)] if isinstance(reward, str) else list(reward)


def told_apart() -> Check:
    """Passes lists whose parts have names of their own."""

    def check(reward: str | Sequence[RewardPart]) -> str | None:
        names = [part.called for part in parts_of(reward)]
        twice = sorted({name for name in names if names.count(name) > 1})
        return f"several parts are called {', '.join(twice)}; give them a name each, as in {{source: ..., name: ...}}" if twice else None

    return check

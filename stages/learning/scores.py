"""What completions are worth: a group as it was drawn, the rewards of each part, and their weighted sum."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stages.model.groups import Completed
from stages.model.sampling import Completion


class Drawn(NamedTuple):
    """A prompt's sampled completions."""

    place: int
    """Place of the prompt in its file."""
    prompt: Sequence[int]
    completions: Sequence[Completion]

    def whole(self) -> Completed:
        """What goes through the model."""
        return Completed(self.prompt, [completion.ids for completion in self.completions])


class Rewards(NamedTuple):
    """Rewards of G completions."""

    values: Tensor
    """float64 [G]; 0 where there is none."""
    rated: Tensor
    """bool [G], false where there is none: the reward abstained."""

    def of(self, draws: slice) -> "Rewards":
        """Those of some of the completions."""
        return Rewards(self.values[draws], self.rated[draws])


class Scores(NamedTuple):
    """Rewards of G completions, and what they are made of."""

    total: Rewards
    parts: Mapping[str, Rewards]
    """By the names that reports give them, in the order of the settings, before their weights."""


class Part(Protocol):
    """One reward, ready to score."""

    def rewards(self, groups: Sequence[Drawn]) -> list[Rewards]:
        """Of several prompts' completions, on the very tokens that were sampled; leaves every adapter off."""


def all_rated(values: Tensor) -> Rewards:
    """Rewards none of which abstained; float64 [G]."""
    return Rewards(values, torch.ones(len(values), dtype=torch.bool))


def weighted(parts: Sequence[tuple[float, Rewards]]) -> Rewards:
    """The sum by weights of the parts that do not abstain, for each completion; it abstains itself where all of them do.

    One part of weight 1 is itself, to the last bit.
    """
    (weight, first), *others = parts
    values, rated = first.values * weight, first.rated
    for weight, more in others:
        values, rated = values + more.values * weight, rated | more.rated
    return Rewards(values, rated)

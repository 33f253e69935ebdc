"""A prompt and its completions: what goes through a model together, since all of them share the prompt."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor


class Completed(NamedTuple):
    """A prompt and the G completions after it, the end tokens included."""

    prompt: Sequence[int]
    completions: Sequence[Sequence[int]]

    def rows(self) -> list[list[int]]:
        """Whole sequences, one per completion."""
        return [[*self.prompt, *completion] for completion in self.completions]


class TokenScores(NamedTuple):
    """Of the completions' tokens, one after the other, float32 [N]."""

    log_probs: Tensor
    """Log-probability of each token under the tempered distribution, before top-p, nats; carries the gradient."""
    entropy: Tensor
    """Entropy of that distribution, nats; without gradient."""


def sharing(rows: Sequence[Sequence[int]]) -> Completed:
    """Whole sequences as completions of what all of them begin with; each keeps at least its last token to itself."""
    most = min(map(len, rows)) - 1
    same = next((place for place in range(most) if len({row[place] for row in rows}) > 1), most)
    return Completed(rows[0][:same], [row[same:] for row in rows])


def runs(groups: Sequence[Completed], fits: Callable[[Sequence[Completed]], bool]) -> list[range]:
    """Neighbouring groups that go through the model together: as many as fit, and at least one."""
    found: list[range] = []
    start = 0
    for end in range(1, len(groups) + 1):
        if end - start > 1 and not fits(groups[start:end]):
            found.append(range(start, end - 1))
            start = end - 1
    return [*found, range(start, len(groups))] if groups else []

"""Reward `length`: the number of tokens of a completion, its end token not counted; longer is better, an empty one scores 0."""

from collections.abc import Sequence


def length(token_ids: Sequence[Sequence[int]]) -> list[float]:
    """Tokens of each completion of a group, which come without their end token."""
    return [float(len(ids)) for ids in token_ids]

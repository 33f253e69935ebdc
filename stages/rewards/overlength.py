"""Reward `overlength`: a soft penalty for completions that come close to a cap (DAPO, arXiv:2503.14476, eq. 13)."""

from collections.abc import Sequence


def overlength(token_ids: Sequence[Sequence[int]], ended: Sequence[bool], cap: int, margin: int) -> list[float]:
    """0.0 up to `cap - margin` tokens, from there on evenly down to -1.0 at `cap` and beyond; the end token counts, as in max_new_tokens.

    Raises ValueError where the margin is not between one token and the cap.
    """
    if not 1 <= margin <= cap:
        raise ValueError(f"margin must be from 1 to cap ({cap}), found {margin}")
    lengths = [len(ids) + one for ids, one in zip(token_ids, ended, strict=True)]
    return [min(cap - margin - length, 0) / margin if length < cap else -1.0 for length in lengths]

"""What is reported of scores, as pure functions: order of pairs, win rate, means with a bootstrap interval."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """A mean with its 95% bootstrap interval; without one where there is but one value, which says nothing of its spread."""

    mean: float
    low: float | None
    high: float | None


class PairOrder(NamedTuple):
    """How a reward model orders B pairs."""

    correct: Floats
    """1.0 where the chosen side scores higher, 0.0 elsewhere; a tie is not a win, [B]."""
    tied_pairs: int
    """Pairs whose scores are exactly equal."""
    margins: Floats
    """Chosen minus rejected score, [B]."""


def pair_order(chosen: Floats, rejected: Floats) -> PairOrder:
    """Which pairs are ordered right, which tie; scores [B] twice, compared exactly."""
    return PairOrder((chosen > rejected).astype(np.float64), int((chosen == rejected).sum()), chosen - rejected)


def first_not_finite(values: Floats) -> int | None:
    """The place of the first of [N] that is not finite; None where all are."""
    broken = np.flatnonzero(~np.isfinite(values))
    return int(broken[0]) if len(broken) else None


def win_rate(policy: Floats, base: Floats) -> float:
    """Share of draws in which the policy's completion scores higher than the base's; a tie counts half; [N] twice."""
    return float(np.mean((policy > base) + 0.5 * (policy == base)))


def correlation(one: Floats, other: Floats) -> float | None:
    """Pearson's correlation of [N] and [N]; None where either does not vary."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.clip(np.corrcoef(one, other)[0, 1], -1, 1))


def bootstrap_mean(values: Floats, resamples: int, seed: int) -> Interval:
    """Mean of values [N] and its percentile interval over `resamples` draws with replacement (Efron, 1979)."""
    if len(values) < 2:
        return Interval(float(values.mean()), None, None)
    generator = np.random.Generator(np.random.Philox(seed))
    means = np.array([values[generator.integers(0, len(values), len(values))].mean() for _ in range(resamples)])
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))

"""Order of pairs, win rate and bootstrap: by hand, and the interval against a plain implementation."""

import math

import numpy as np
import pytest

from stages.learning.metrics import bootstrap_mean, correlation, pair_order, win_rate


def test_a_correlation_is_pearsons_and_none_where_nothing_varies():
    # deviations -1 0 1 and -2 1 1: 3 / sqrt(2 * 6)
    assert correlation(np.array([1.0, 2.0, 3.0]), np.array([0.0, 3.0, 3.0])) == pytest.approx(3 / math.sqrt(12))
    assert correlation(np.array([1.0, 2.0]), np.array([0.1, 0.2])) == pytest.approx(1.0)
    assert correlation(np.array([1.0, 1.0]), np.array([1.0, 2.0])) is None
    assert correlation(np.array([1.0]), np.array([1.0])) is None


def test_a_tie_is_counted_apart_and_is_not_a_win():
    ordered = pair_order(np.array([1.0, 2.0, 0.0, -1.0]), np.array([0.5, 2.0, 0.0, 3.0]))
    assert ordered.correct.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert ordered.tied_pairs == 2
    assert ordered.margins.tolist() == [0.5, 0.0, 0.0, -4.0]


def test_a_small_margin_around_a_large_score_is_no_tie():
    chosen, rejected = np.float32([20.0001]).astype(np.float64), np.float32([20.0]).astype(np.float64)
    ordered = pair_order(chosen, rejected)  # bfloat16 would round both to 20
    assert (ordered.correct.tolist(), ordered.tied_pairs) == ([1.0], 0)


def test_a_tie_counts_half_in_the_win_rate():
    # won, tied, lost, tied: (1 + 0.5 + 0 + 0.5) / 4
    assert win_rate(np.array([2.0, 1.0, 0.0, 5.0]), np.array([1.0, 1.0, 1.0, 5.0])) == 0.5
    assert win_rate(np.array([2.0, 1.0]), np.array([1.0, 1.0])) == 0.75


def plain_interval(values: list[float], resamples: int, seed: int) -> tuple[float, float]:
    """The percentile interval in Python alone, but for the generator that draws the rows."""
    generator = np.random.Generator(np.random.Philox(seed))
    means = []
    for _ in range(resamples):
        rows = [int(row) for row in generator.integers(0, len(values), len(values))]
        means.append(math.fsum(values[row] for row in rows) / len(values))
    means.sort()

    def percentile(share: float) -> float:
        place = share * (resamples - 1)
        below = math.floor(place)
        above = min(below + 1, resamples - 1)
        return means[below] + (place - below) * (means[above] - means[below])

    return percentile(0.025), percentile(0.975)


def test_the_interval_is_the_one_of_a_plain_implementation():
    values = [0.5, -1.25, 3.0, 0.0, 2.5, -0.75, 1.0]
    found = bootstrap_mean(np.array(values), 237, 9)
    assert found.mean == pytest.approx(5 / 7)  # the sum is 5
    assert (found.low, found.high) == pytest.approx(plain_interval(values, 237, 9))


def test_the_interval_has_the_width_of_the_normal_one_for_many_values():
    # 400 values of mean 0 and deviation 1: the mean's deviation is 1/20, the interval 2 * 1.96 / 20 = 0.196 wide. Of 4000
    # resamples each end is off by about 1/20 * 0.04 = 0.002; five times that is never seen by chance.
    values = np.array([-1.0, 1.0] * 200)
    found = bootstrap_mean(values, 4000, 3)
    assert found.mean == 0.0
    assert (found.low, found.high) == pytest.approx((-0.098, 0.098), abs=0.01)


def test_one_value_has_no_interval_and_that_of_equal_ones_is_their_value():
    assert bootstrap_mean(np.array([0.1]), 20, 0) == (0.1, None, None)
    assert bootstrap_mean(np.full(4, 0.5), 20, 0) == (0.5, 0.5, 0.5)


def test_the_seed_decides_the_interval():
    values = np.arange(10.0)
    assert bootstrap_mean(values, 50, 1) == bootstrap_mean(values, 50, 1)
    assert bootstrap_mean(values, 50, 1) != bootstrap_mean(values, 50, 2)

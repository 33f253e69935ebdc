"""The draws: a function of seed, iteration, index, draw and position, and of nothing else."""

import itertools

import numpy as np
import pytest

from stages.model.draws import uniforms


def test_the_same_place_gives_the_same_numbers_whatever_was_drawn_before():
    first = uniforms(3, 1, 4, 1, 5)
    uniforms(9, 2, 6, 5, 50)
    np.random.default_rng().random()
    assert np.array_equal(uniforms(3, 1, 4, 1, 5), first)


def test_every_seed_iteration_index_draw_and_position_has_a_number_of_its_own():
    places = itertools.product((0, 1, 2**63), (0, 1, 2), (0, 1, 2), (0, 1, 2))
    numbers = np.concatenate([uniforms(*place, 20) for place in places])
    # 81 places of 20 numbers: with 53 random bits the odds that any two are equal are 1620^2 / 2^54, below 2e-10.
    assert len(np.unique(numbers)) == 81 * 20


def test_a_longer_run_begins_with_the_shorter_one():
    long = uniforms(1, 2, 3, 4, 100)
    for positions in (1, 3, 4, 5, 33):
        assert np.array_equal(uniforms(1, 2, 3, 4, positions), long[:positions])


def test_numbers_are_uniform_from_zero_to_below_one():
    numbers = np.concatenate([uniforms(0, 0, 0, draw, 1) for draw in range(4000)])
    assert numbers.dtype == np.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    # 5 deviations of a count of a tenth of 4000, sqrt(4000 * 0.1 * 0.9) = 19; odds of a false alarm under another seed 6e-6.
    assert np.abs(np.histogram(numbers, bins=10, range=(0, 1))[0] - 400).max() < 95


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_number_that_the_generator_does_not_take_is_not_wrapped_to_another(value: int):
    with pytest.raises(OverflowError):
        uniforms(value, 0, 0, 0, 1)

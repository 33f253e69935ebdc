"""The learning rate: by hand, and against transformers' own schedule where the two agree."""

import math

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup

from stages.core.errors import TrainingError
from stages.learning import schedule
from stages.learning.schedule import learning_rate
from tests.learning import runs


def test_warm_up_rises_in_equal_parts_to_the_peak_at_its_last_step():
    # peak 8, 4 warm-up steps: (k + 1) / 4 of it
    assert [learning_rate(step, 12, 8.0, 4) for step in range(4)] == [2.0, 4.0, 6.0, 8.0]


def test_after_the_warm_up_half_a_cosine_falls_from_the_peak_towards_zero():
    # 8 steps are left of 12; at 0, 1/4, 1/2, 3/4 of them 8 * (1 + cos) / 2 with cos 1, r, 0, -r where r = sqrt(1/2)
    root = math.sqrt(0.5)
    wanted = [8.0, 4 * (1 + root), 4.0, 4 * (1 - root)]
    assert [learning_rate(step, 12, 8.0, 4) for step in (4, 6, 8, 10)] == pytest.approx(wanted)


def test_without_warm_up_the_first_step_is_at_the_peak():
    assert learning_rate(0, 5, 3e-4, 0) == 3e-4


def test_no_step_is_taken_at_a_rate_of_zero_and_the_next_one_would_be():
    assert learning_rate(11, 12, 8.0, 4) == pytest.approx(4 * (1 + math.cos(7 / 8 * math.pi)))  # 7/8 of the way: 0.304
    assert learning_rate(12, 12, 8.0, 4) == pytest.approx(0.0, abs=1e-15)


def test_the_cosine_is_the_one_of_transformers():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=2e-3)
    theirs = get_cosine_schedule_with_warmup(optimizer, 3, 10)
    for step in range(10):
        if step >= 3:  # their warm-up starts from zero, ours from a part of the peak
            assert learning_rate(step, 10, 2e-3, 3) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("warmup_steps", [6, 7, 100])
def test_a_warm_up_not_below_the_steps_is_refused(warmup_steps):
    with pytest.raises(TrainingError, match=rf"^reward\.warmup_steps: {warmup_steps} warm-up steps are not below the 6 steps of this run"):
        schedule.require_room("reward", warmup_steps, 6)


def test_a_warm_up_one_below_the_steps_is_taken():
    schedule.require_room("reward", 5, 6)


def test_both_loops_refuse_a_warm_up_that_fills_their_planned_steps():
    with pytest.raises(TrainingError, match=r"^reward\.warmup_steps: 6 warm-up steps are not below the 6 steps"):
        runs.train_reward(runs.calm_pairs(), warmup_steps=6)  # 3 epochs of 8 pairs by 4
    with pytest.raises(TrainingError, match=r"^grpo\.warmup_steps: 4 warm-up steps are not below the 4 steps"):
        runs.train_policy(iterations=2, accumulation=3, warmup_steps=4)  # 2 iterations of 6 prompts by 3

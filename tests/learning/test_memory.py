"""What long runs and large vocabularies hold in memory."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.learning import grpo_loop, reward_loop
from stages.learning.reward_source import Scorer
from stages.model.groups import Completed
from stages.model.reward_model import RewardModel
from tests import tiny
from tests.learning import runs

STATM = Path("/proc/self/statm")


class Watch:
    """Stands where the history is: the process's memory in MB after every step."""

    def __init__(self) -> None:
        self.megabytes: list[float] = []

    def begin(self, _steps: Any) -> None:
        pass

    def append(self, _row: dict[str, Any]) -> None:
        self.megabytes.append(int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="the system does not tell what a process holds")
@pytest.mark.parametrize("stage", ["grpo", "reward"])
def test_memory_is_flat_over_300_steps(stage: str):
    watch: Any = Watch()
    adapted = tiny.adapted(runs.frozen_toy())
    plan = runs.toy_plan(adapted.model)
    if stage == "grpo":
        settings = runs.grpo_settings(iterations=50, max_new_tokens=12)
        grpo_loop.fit(adapted, plan, Scorer(adapted, None), runs.fitting_prompts(), [runs.END], settings, watch)
    else:
        model = RewardModel.fresh(adapted, plan, 0)
        reward_loop.fit(model, plan, runs.fitting_pairs(runs.calm_pairs()), runs.reward_settings(epochs=150), watch)
    assert len(watch.megabytes) == 300
    before, after = max(watch.megabytes[50:100]), max(watch.megabytes[250:])
    assert after < before + 4  # 200 steps that kept what each has for its gradient would add tens of megabytes


def test_what_is_kept_for_the_gradient_does_not_grow_with_the_vocabulary():
    def kept(rows: int) -> int:
        model = tiny.model(vocab_size=rows)
        held = tiny.adapted(model)
        held.add_fresh("policy", runs.toy_plan(model), seed=0)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: sizes.append(one.numel()) or one, lambda one: one):
            held.passes.token_scores([Completed([6, 7, 8], [[9, 10, 11], [12, 13]])], 0.7)
        return sum(sizes)

    assert kept(40) == kept(4000) > 0

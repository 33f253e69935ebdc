"""What long runs and large vocabularies hold in memory."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.files.states import StateFolder
from stages.learning import grpo_loop, reward_loop
from stages.learning.resume import Saving
from stages.model.groups import Completed
from stages.model.reward_model import RewardModel
from tests import tiny
from tests.conftest import ROOT
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
def test_memory_is_flat_over_300_steps_with_a_state_saved_every_ten(stage: str, tmp_path: Path):
    watch: Any = Watch()
    saving = Saving(StateFolder(tmp_path), 10)
    adapted = tiny.adapted(runs.frozen_toy())
    plan = runs.toy_plan(adapted.model)
    if stage == "grpo":
        settings = runs.grpo_settings(iterations=50, max_new_tokens=12)
        grpo_loop.fit(adapted, plan, runs.length_scorer(), runs.fitting_prompts(), [runs.END], settings, watch, saving)
    else:
        model = RewardModel.fresh(adapted, plan, 0)
        reward_loop.fit(model, plan, runs.fitting_pairs(runs.calm_pairs()), runs.reward_settings(epochs=150), watch, saving)
    assert len(watch.megabytes) == 300
    assert sorted(file.stem for file in tmp_path.glob("*.json")) == ["000000290", "000000300"]
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


PEAK = """
import re, sys
from pathlib import Path
import torch
from stages.model.groups import Completed
from tests import tiny
from tests.learning import runs

torch.set_num_threads(1)
rows, tokens = int(sys.argv[1]), int(sys.argv[2])
model = tiny.model(vocab_size=rows, hidden_size=8, head_dim=2, max_position_embeddings=1024)
held = tiny.adapted(model)
held.add_fresh("policy", runs.toy_plan(model), seed=0)
held.use("policy")
group = Completed([6, 7, 8], [[9 + (place + draw) % 20 for place in range(tokens)] for draw in range(8)])

def status(field):
    return int(re.search(rf"{field}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
before = status("VmRSS")
(scores,) = held.passes.token_scores([group], 0.7)
scores.log_probs.sum().backward()
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="the system does not tell what a process holds")
def test_a_large_vocabulary_over_long_completions_stays_far_below_its_logits():
    """8 x 512 tokens over 150,000 rows: their logits would be 2.3 GiB, twice that with a gradient."""
    done = subprocess.run([sys.executable, "-c", PEAK, "150000", "512"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    logits = 8 * 512 * 150_000 * 4 / 2**20
    assert 0 < float(done.stdout) < 0.25 * logits

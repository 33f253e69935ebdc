"""What each of several processes of a training does in the tests of `ranks`; run under torchrun, it leaves what it found in a folder."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from stages.core import rank
from stages.core.errors import TrainingError
from stages.learning import rounds
from stages.learning.ranks import GradientSum, Ranks, join
from stages.learning.scores import Drawn, Scores
from stages.model import passes, sharding
from stages.model.adapters import Adapters
from stages.model.layers import stack
from stages.model.reward_model import RewardModel
from stages.model.sampling import Completion
from tests import tiny
from tests.learning import runs

IDLE = "runtime.processes: "
"""What the line begins with that tells of processes without work; one process has none."""

Case = Callable[[Ranks], runs.Trained]


class Abstaining(runs.ByTokens):
    """Has no reward for the second draw of every third prompt."""

    def scores(self, groups: Sequence[Drawn]) -> list[Scores]:
        found = []
        for group, scores in zip(groups, super().scores(groups), strict=True):
            rated = scores.total.rated.clone()
            rated[1] = group.place % 3 > 0
            found.append(scores._replace(total=scores.total._replace(rated=rated)))
        return found


def policy(prompts: int = 6, **changes: Any) -> Case:
    """A GRPO run of three iterations over so many prompts, each pass of one group."""

    def case(ranks: Ranks) -> runs.Trained:
        adapted = tiny.adapted(runs.frozen_toy())
        adapted.passes.fits = lambda groups: len(groups) < 2  # type: ignore[method-assign]
        return runs.train_policy(
            runs.fitting_prompts(prompts), adapted=adapted, ranks=ranks, **{"iterations": 3, "accumulation": 4, **changes}
        )

    return case


def reward(pairs: int = 8, **changes: Any) -> Case:
    """A reward training of three epochs on so many pairs."""
    return lambda ranks: runs.train_reward(runs.calm_pairs(pairs), ranks=ranks, **{"batch_size": 1, **changes})


CASES: dict[str, Case] = {
    "policy": policy(),
    "one prompt": policy(1),
    "three prompts in windows of two": policy(3, accumulation=2),
    "refused groups": policy(6, empty_completions="refuse", end_tokens=tuple(range(2, 8))),
    "several updates by tokens": policy(6, updates=2, aggregation="tokens", mask_truncated=True, end_tokens=tuple(range(2, 8))),
    "unrated groups": policy(6, scorer=Abstaining()),
    "reward": reward(),
    "five pairs": reward(5),
    "one pair": reward(1),
    "one batch": reward(8, batch_size=4),
}


SHORT_AND_LONG = {0: [[5, 6], [6, 5], [7, 8], [8, 7]], 1: [[9 + (place * draw) % 7 for place in range(50)] for draw in range(1, 5)]}
"""Completions of two prompts: of two tokens each, and of fifty."""


def short_and_long(ranks: Ranks) -> runs.Trained:
    """One step on them, those of a prompt in a process of their own."""
    prompts = runs.fitting_prompts(2)

    def sample(_model: Any, asked: list[list[int]], *_: Any) -> list[list[Completion]]:
        return [[Completion(ids, ended=False) for ids in SHORT_AND_LONG[prompts.ids.index(one)]] for one in asked]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rounds, "sample", sample)
        adapted = tiny.adapted(runs.frozen_toy())
        adapted.passes.fits = lambda groups: len(groups) < 2  # type: ignore[method-assign]
        scorer = runs.ByTokens()
        return runs.train_policy(prompts, scorer, adapted=adapted, ranks=ranks, accumulation=2, max_new_tokens=50, temperature=1.0)


def sharded(ranks: Ranks) -> dict[str, Any]:
    """A policy and a reward training over a base whose layers are spread over the processes; and what each holds of them."""
    runtime = dataclasses.replace(tiny.RUNTIME, shard=ranks.size > 1)
    found: dict[str, Any] = {}
    for name in ("policy", "reward"):
        model = runs.frozen_toy()
        whole = sum(parameter.numel() for parameter in stack(model).parameters())
        if ranks.size > 1:
            sharding.spread(model, torch.device("cpu"))
        held = sum(getattr(parameter, "_local_tensor", parameter).numel() for parameter in stack(model).parameters())
        adapted = Adapters(passes.choose(model, runtime))
        alike = dataclasses.replace(ranks, alike=ranks.size > 1)
        if name == "policy":
            trained = runs.train_policy(runs.fitting_prompts(3), adapted=adapted, ranks=alike, accumulation=3, iterations=2)
        else:
            plan = runs.toy_plan(model)
            reward_model = RewardModel.fresh(adapted, plan, 42)
            trained = runs.train_reward(runs.calm_pairs(), reward_model=reward_model, ranks=alike)
        found[name] = {"held": held / whole, **{key: tensor.tolist() for key, tensor in trained.tensors.items()}}
    return found


def result(trained: runs.Trained) -> dict[str, Any]:
    """What a run left, without its tensors."""
    figures = {name: getattr(trained.run, name, None) for name in ("steps", "history", "final_loss", "refused_groups")}
    return {**figures, "said": [line for line in trained.said if not line.startswith(IDLE)]}


def initial(ranks: Ranks) -> list[list[float]]:
    """The adapter of each process at its start."""
    adapted = tiny.adapted(runs.frozen_toy())
    factors = adapted.add_fresh("policy", runs.toy_plan(adapted.model), 42)
    mine = torch.cat([factor.detach().flatten() for factor in factors.values()]).tolist()
    return ranks.gather(lambda: mine)


def drawn(ranks: Ranks) -> list[list[Any]]:
    """What each process samples of one prompt that stands twice in a file."""
    prompts = runs.fitting_prompts(1)
    twice = prompts._replace(ids=[prompts.ids[0]] * 4, indexes=[0, 1, 2, 3])
    adapted = tiny.adapted(runs.frozen_toy())
    adapted.add_fresh("policy", runs.toy_plan(adapted.model), 42)
    loop = rounds.Rounds(adapted, runs.length_scorer(), twice, [runs.END], runs.grpo_settings(), ranks)
    own = ranks.share(4)
    return ranks.gather(
        lambda: [[list(one.ids) for one in group.completions] for group in loop.sample(range(4)[own.start : own.stop], 1, "here", 0)]
    )


def refusals(ranks: Ranks) -> list[str]:
    """What every process is told where the last one alone refuses."""

    def work() -> None:
        if ranks.rank == ranks.size - 1:
            raise TrainingError(["the first problem", "the second"])

    try:
        ranks.gather(work)
    except TrainingError as error:
        return error.lines()
    return []


def unequal_gradients(ranks: Ranks) -> list[float]:
    """Short completions in the first process, long ones in the last: their gradients summed."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    total = GradientSum([parameter], ranks)
    for value in [2**-25, 1.0, -1.0, 0.25][ranks.share(4).start : ranks.share(4).stop]:
        parameter.grad = torch.full((3,), value)
        total.add()
    total.finish()
    assert parameter.grad is not None
    return parameter.grad.tolist()


def every(ranks: Ranks, folder: Path) -> None:
    """Runs all of it; the first process writes what the others have to have found too."""
    for name, case in {**CASES, "short and long": short_and_long}.items():
        trained = case(ranks)
        same = ranks.gather(lambda trained=trained: (trained.bytes(), trained.run))  # type: ignore[misc]
        assert all(one == same[0] for one in same), name
        if ranks.rank == 0:
            np.savez(folder / f"{name}.npz", **trained.tensors)
            idle = [line for line in trained.said if line.startswith(IDLE)]
            (folder / f"{name}.json").write_text(json.dumps({**result(trained), "idle": idle}))
    found = {"initial": initial(ranks), "drawn": drawn(ranks), "gradients": unequal_gradients(ranks)}
    spread = sharded(ranks)
    found["refusals"] = refusals(ranks)
    found["sharded"] = ranks.gather(lambda: spread)
    if ranks.rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ[rank.LAUNCHER] = str(os.getppid())
    torch.set_num_threads(1)
    every(join(tiny.RUNTIME), Path(sys.argv[1]))
    dist.destroy_process_group()

"""Our training loops on one job, as JSON on stdout, the same figures as of TRL's; and the floor beside a GRPO job where it asks for it."""

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from stages.core.settings.grpo import Grpo
from stages.core.settings.reward import Reward
from stages.core.settings.runtime import Runtime
from stages.learning import grpo_loop, reward_loop
from stages.learning.fitting import FittingPairs, FittingPrompts
from stages.learning.reward_source import LengthPart, Scorer
from stages.model import adapters, passes
from stages.model.adapters import Adapters
from stages.model.draws import group_uniforms
from stages.model.rendering import EncodedPair
from stages.model.reward_model import RewardModel
from stages.model.sampling import sample
from tests.bench import floor


class Clock:
    """Stands where the history file does: takes the time of every step, and then of what else is to be timed beside it."""

    def __init__(self, beside: Callable[[], float] | None = None) -> None:
        self._beside = beside
        self.seconds: list[float] = []
        self.beside: list[float] = []
        self.begin()

    def begin(self, _steps: Any = ()) -> None:
        """Starts anew; the loop calls it when the adapters are there, as TRL's are before train() is called."""
        self.start = self._begun = time.perf_counter()

    def append(self, _row: Any) -> None:
        self.seconds.append(time.perf_counter() - self._begun)
        if self._beside:
            self.beside.append(self._beside())
        self._begun = time.perf_counter()


def main(job: dict[str, Any]) -> None:
    runtime = Runtime(
        device="cpu",
        threads=job["threads"],
        logits_chunk=128,
        activation_checkpointing=job.get("checkpointing", False),
        checkpoint_every=1,
        processes=1,
        nodes=1,
        rendezvous=None,
        shard=False,
    )
    torch.set_num_threads(job["threads"])
    model = AutoModelForCausalLM.from_pretrained(job["checkpoint"], dtype=torch.float32).eval().requires_grad_(False)
    gc.freeze()  # as a stage does with what its imports made
    run = reward if "pairs" in job else sampling if "prompt_ids" in job else grpo
    found = run(job, model, runtime)
    sys.stdout.write(json.dumps(found) + "\n")


def grpo(job: dict[str, Any], model: PreTrainedModel, runtime: Runtime) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(job["checkpoint"])
    ids = [tokenizer(text).input_ids for text in job["prompts"]]
    ends = [tokenizer.eos_token_id if job["end_token"] is None else job["end_token"]]
    settings = Grpo(
        reward="length",
        init_adapter=None,
        group=job["group"],
        iterations=job["steps"] // len(ids),
        beta=job["beta"],
        rank=8,
        alpha=16.0,
        targets=["q_proj", "v_proj"],
        layers="all",
        learning_rate=job["learning_rate"],
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=1.0,
        accumulation=1,
        max_new_tokens=job["new_tokens"],
        temperature=job["temperature"],
        top_p=job["top_p"],
        max_sequence=4096,
        updates=1,
        clip_low=0.2,
        clip_high=0.2,
        importance_sampling_level="token",
        aggregation="completion",
        scale_rewards="group",
        mask_truncated=False,
        empty_completions="score",
        seed=0,
    )
    plan = adapters.plan(model, "grpo", 8, 16.0, settings.targets, "all")
    prompts = FittingPrompts(ids, list(range(len(ids))), 0, {})
    shape = floor.Shape(len(ids[0]), job["group"], job["new_tokens"])
    clock: Any = Clock((lambda: sum(floor.measure(model, shape))) if job["floor"] else None)

    adapted = Adapters(passes.choose(model, runtime))
    grpo_loop.fit(adapted, plan, Scorer({"length": (1.0, LengthPart())}), prompts, ends, settings, clock)
    return measured(clock.start) | {"step_seconds": clock.seconds, "floor_seconds": clock.beside}


def reward(job: dict[str, Any], model: PreTrainedModel, runtime: Runtime) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(job["checkpoint"])
    end = [tokenizer.eos_token_id]
    pairs = []
    for pair in job["pairs"]:
        prompt = tokenizer(pair["prompt"]).input_ids
        sides = [tokenizer(pair[side], add_special_tokens=False).input_ids for side in ("chosen", "rejected")]
        pairs.append(EncodedPair(*(prompt + side + end for side in sides)))
    settings = Reward(
        rank=8,
        alpha=16.0,
        targets=["q_proj", "v_proj"],
        layers="all",
        epochs=1,
        learning_rate=job["learning_rate"],
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=1.0,
        accumulation=job["batch_size"],
        batch_size=job["batch_size"],
        max_sequence=4096,
        seed=0,
    )
    plan = adapters.plan(model, "reward", 8, 16.0, settings.targets, "all")
    reward_model = RewardModel.fresh(Adapters(passes.choose(model, runtime)), plan, 0)
    clock: Any = Clock()
    reward_loop.fit(reward_model, plan, FittingPairs(pairs, list(range(len(pairs))), 0, {}), settings, clock)
    return measured(clock.start)


def sampling(job: dict[str, Any], model: PreTrainedModel, runtime: Runtime) -> dict[str, Any]:
    adapted = Adapters(passes.choose(model, runtime))
    adapted.add_fresh("policy", adapters.plan(model, "grpo", 8, 16.0, ["q_proj", "v_proj"], "all"), seed=0)
    rounds = []
    for number, ids in enumerate(job["prompt_ids"]):
        uniforms = group_uniforms(0, 1, [number], job["group"], job["new_tokens"])
        begun = time.perf_counter()
        (group,) = sample(adapted.passes, [ids], uniforms, job["temperature"], job["top_p"], end_tokens=[])
        rounds.append({"seconds": time.perf_counter() - begun, "tokens": sum(len(one.ids) for one in group)})
    return {"rounds": rounds}


def measured(begun: float) -> dict[str, Any]:
    return {"train_seconds": time.perf_counter() - begun, "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

"""Two policies of one base sampled afresh on the same held-out draws, which are none of evaluate's, and scored by reward models."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stages.core.progress import bar
from stages.core.settings.evaluate import Evaluate
from stages.core.settings.runtime import Runtime
from stages.files.artifacts import Artifact
from stages.files.base_record import BaseRecord
from stages.files.records import Prompt, as_json
from stages.learning import fitting
from stages.learning.comparison import AFRESH, drawn, side_rewards
from stages.learning.reward_source import model_scorer
from stages.model import checkpoint, device, passes
from stages.model.adapters import Adapters
from stages.model.rendering import Renderer
from stages.model.reward_model import RewardModel

Rows = list[dict[str, Any]]


@torch.no_grad()
def draw(
    base: BaseRecord,
    policies: Mapping[str, Artifact],
    rewards: Mapping[str, Artifact],
    prompts: Sequence[Prompt],
    settings: Evaluate,
    runtime: Runtime,
) -> dict[str, Rows]:
    """By policy, a row for every draw of every prompt that fits: prompt, draw, policy, and a reward under each reward model's name.

    The base is loaded once, with every adapter in it. Raises BaseError, TrainingError or DataError.
    """
    found = checkpoint.find(base)
    renderer = Renderer(found.tokenizer, base)
    fitted = fitting.fitting_prompts("evaluate", prompts, renderer, settings.max_sequence, "compare on")
    longest = max(map(len, fitted.ids), default=0)
    fitting.require_positions("evaluate.max_new_tokens", "the longest prompt", longest, settings.max_new_tokens, base)
    adapted = Adapters(passes.choose(checkpoint.load_weights(found, device.prepare(runtime)), runtime))
    names = {policy: f"policy_{number}" for number, policy in enumerate(policies)}
    for policy, artifact in policies.items():
        adapted.add_trained(names[policy], artifact.rank, artifact.alpha, artifact.tensors)
    scorers = {
        name: model_scorer(adapted, RewardModel.trained(adapted, artifact, f"reward_{number}"))
        for number, (name, artifact) in enumerate(rewards.items())
    }
    rows: dict[str, Rows] = {policy: [] for policy in policies}
    with bar(len(fitted.ids), "sample") as advance:
        for groups in drawn(adapted, names, fitted, base.end_tokens, settings, AFRESH):
            scored = {name: side_rewards(scorer, groups) for name, scorer in scorers.items()}
            for place, group in enumerate(groups):
                for policy, completions in group.completions.items():
                    rows[policy] += [
                        {
                            "prompt": as_json(prompts[group.place].prompt),
                            "draw": number,
                            "policy": renderer.text(completion.content),
                            **{name: float(values[place].total[policy][number]) for name, values in scored.items()},
                        }
                        for number, completion in enumerate(completions)
                    ]
                advance()
    return rows

"""The grpo stage's training: sample a group per prompt, score it, step the policy toward what beat its own group.

An accumulation window is up to `accumulation` prompts, in file order, within one iteration. All its completions are
drawn in one batch from the policy as it stands; the groups are then scored, compared with the frozen base and
back-propagated, a few in one pass, each divided by the groups that the window scored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stages.core.errors import TrainingError
from stages.core.progress import bar, say
from stages.core.settings.grpo import Grpo
from stages.files.history import HistoryFile
from stages.learning import schedule
from stages.learning.fitting import FittingPrompts
from stages.learning.metrics import first_not_finite
from stages.learning.objective import Advantages, GroupLoss, completion_means, group_advantages, group_loss
from stages.learning.optimizer import Optimizer, count, remedy
from stages.learning.reward_source import Scorer
from stages.model.adapters import Adapters, Plan
from stages.model.draws import group_uniforms
from stages.model.groups import Completed, runs
from stages.model.sampling import Completion, NotFiniteError, sample

ADAPTER_NAME = "policy"
CURVE = (
    "step",
    "iteration",
    "loss",
    "mean_reward",
    "reward_spread",
    "mean_kl",
    "mean_completion_tokens",
    "truncated",
    "entropy",
    "grad_norm",
    "learning_rate",
)
"""Columns of reports/plots/grpo.csv, a row per optimizer step."""


class Group(NamedTuple):
    """A prompt's sampled completions and their rewards."""

    place: int
    """Place of the prompt in its file."""
    prompt: list[int]
    completions: list[Completion]
    rewards: Tensor
    """float64 [G]."""


class GroupFigures(NamedTuple):
    """What one group contributed; means over the group of the completions' own means."""

    loss: float
    reward: float
    spread: float
    """Population standard deviation of the group's rewards; exactly 0 where they are equal."""
    kl: float
    tokens: float
    truncated: float
    entropy: float
    completions: int


@dataclass(frozen=True)
class GrpoRun:
    """What a training run measured."""

    steps: list[dict[str, Any]]
    """Rows of the curve."""
    history: list[dict[str, Any]]
    """One entry per iteration."""
    planned_steps: int
    refused_groups: int
    warning: str | None
    """What a reader must know before believing the last iteration; None where there is nothing."""


def planned_steps(prompts: int, settings: Grpo) -> int:
    """Optimizer steps of a run in which no window is refused whole; a window does not cross iterations.

    Raises TrainingError where the warm-up leaves no step after it.
    """
    steps = settings.iterations * math.ceil(prompts / settings.accumulation)
    schedule.require_room("grpo", settings.warmup_steps, steps)
    return steps


def fit(
    adapters: Adapters, plan: Plan, scorer: Scorer, prompts: FittingPrompts, end_tokens: Sequence[int], settings: Grpo, history: HistoryFile
) -> GrpoRun:
    """Trains a fresh policy adapter on P prompts.

    Raises TrainingError where the warm-up leaves no step, a number is not finite (before any weight moves), or every
    group of an iteration is refused.
    """
    planned = planned_steps(len(prompts.ids), settings)
    trainable = adapters.add_fresh(ADAPTER_NAME, plan, settings.seed)
    say(f"training {len(trainable)} adapter tensors ({count(trainable)} parameters) at rank {plan.rank} across {len(plan.layers)} layers")
    optimizer = Optimizer(trainable, planned, settings, "grpo")
    steps: list[dict[str, Any]] = []
    iterations: list[dict[str, Any]] = []
    refused = 0
    step = 0
    with bar(planned, "grpo") as advance:
        for iteration in range(1, settings.iterations + 1):
            figures: list[GroupFigures] = []
            first = len(steps)
            name = f"iteration {iteration}/{settings.iterations}"
            for start in range(0, len(prompts.ids), settings.accumulation):
                window = range(start, min(start + settings.accumulation, len(prompts.ids)))
                groups = _sample_window(adapters, scorer, prompts, window, end_tokens, iteration, settings, name, step)
                refused += len(window) - len(groups)
                if groups:
                    found = _back_propagate(adapters, groups, settings, name, step)
                    where = f"{name} step {step + 1}/{planned}"
                    norm = optimizer.step(step, where)
                    row = {
                        "step": step + 1,
                        "iteration": iteration,
                        **_means(found),
                        "grad_norm": norm,
                        "learning_rate": optimizer.rate(step),
                    }
                    say(f"{where} loss {row['loss']:.4f} reward {row['mean_reward']:.4f} kl {row['mean_kl']:.5f}")
                    steps.append(row)
                    history.append(row)
                    figures += found
                step += 1
                advance()
            if not figures:
                raise TrainingError(
                    f"grpo.empty_completions: {name}: every group was refused: a sampled completion was empty, so this group has nothing "
                    "to score; set grpo.empty_completions=score, or give prompts that the base completes"
                )
            entry = _iteration(iteration, figures, steps[first:])
            iterations.append(entry)
            say(
                f"{name} mean reward {entry['mean_reward']:.4f} spread {entry['reward_spread']:.4f} "
                f"mean kl {entry['mean_kl']:.5f} policy loss {entry['policy_loss']:.4f}"
            )
            if warning := _warning(entry):
                say(f"{name} warning: {warning}")
    return GrpoRun(steps, iterations, planned, refused, _warning(iterations[-1]))


def _sample_window(
    adapters: Adapters,
    scorer: Scorer,
    prompts: FittingPrompts,
    window: range,
    end_tokens: Sequence[int],
    iteration: int,
    settings: Grpo,
    name: str,
    step: int,
) -> list[Group]:
    """Groups of the window's prompts, sampled from the policy and scored; those with an empty completion left out where refused."""
    for number in window:
        say(f"{name} prompt {prompts.indexes[number]} sampling {settings.group} completions")
    indexes = [prompts.indexes[number] for number in window]
    chooser = group_uniforms(settings.seed, iteration, indexes, settings.group, settings.max_new_tokens)
    adapters.use(ADAPTER_NAME)
    try:
        sampled = sample(
            adapters.passes, [prompts.ids[number] for number in window], chooser, settings.temperature, settings.top_p, end_tokens
        )
    except NotFiniteError as error:
        raise TrainingError(
            f"{name} prompt {prompts.indexes[window[error.prompt]]} draw {error.draw}: the policy's distribution is not finite at "
            f"position {error.position}; {remedy('grpo', step)}"
        ) from error
    kept: list[tuple[int, list[Completion]]] = []
    for number, completions in zip(window, sampled, strict=True):
        if settings.empty_completions == "refuse" and any(completion.empty for completion in completions):
            say(
                f"{name} prompt {prompts.indexes[number]}: a sampled completion was empty, so this group has nothing to score; "
                "the group is refused"
            )
        else:
            kept.append((number, completions))
    scored = scorer.rewards([(prompts.ids[number], completions) for number, completions in kept])
    for (number, _), rewards in zip(kept, scored, strict=True):
        if (draw := first_not_finite(rewards.numpy())) is not None:
            raise TrainingError(
                f"{name} prompt {prompts.indexes[number]} draw {draw}: the reward is {float(rewards[draw])}, which is not finite; "
                "no weight was moved"
            )
    return [
        Group(prompts.indexes[number], prompts.ids[number], completions, rewards)
        for (number, completions), rewards in zip(kept, scored, strict=True)
    ]


def _back_propagate(adapters: Adapters, groups: Sequence[Group], settings: Grpo, name: str, step: int) -> list[GroupFigures]:
    """Adds the gradient of a window's mean loss over its groups, pass by pass, and returns each group's figures."""
    whole = [Completed(group.prompt, [completion.ids for completion in group.completions]) for group in groups]
    figures: list[GroupFigures] = []
    for together in runs(whole, adapters.passes.fits):
        batch = [whole[number] for number in together]
        with torch.no_grad(), adapters.using(None, then=ADAPTER_NAME):
            reference = adapters.passes.token_scores(batch, settings.temperature)
        policy = adapters.passes.token_scores(batch, settings.temperature)
        losses = []
        for number, ours, base in zip(together, policy, reference, strict=True):
            group = groups[number]
            lengths = torch.tensor([len(completion.ids) for completion in group.completions], device=ours.log_probs.device)
            advantages = group_advantages(group.rewards)
            parts = group_loss(ours.log_probs, base.log_probs, lengths, advantages, settings.beta)
            if not torch.isfinite(parts.loss):
                raise TrainingError(
                    f"{name} prompt {group.place}: the loss is not finite (kl {float(parts.kl.detach())}); no weight was moved; "
                    f"{remedy('grpo', step)}"
                )
            losses.append(parts.loss / len(groups))
            figures.append(_figures(group, advantages, parts, float(completion_means(ours.entropy, lengths).mean())))
        torch.stack(losses).sum().backward()
    return figures


def _figures(group: Group, advantages: Advantages, parts: GroupLoss, entropy: float) -> GroupFigures:
    return GroupFigures(
        loss=float(parts.loss.detach()),
        reward=float(group.rewards.mean()),
        spread=advantages.denominator / len(group.completions),
        kl=float(parts.kl.detach()),
        tokens=float(np.mean([completion.length for completion in group.completions])),
        truncated=float(np.mean([not completion.ended for completion in group.completions])),
        entropy=entropy,
        completions=len(group.completions),
    )


def _means(figures: Sequence[GroupFigures]) -> dict[str, float]:
    """The figures of several groups, each group counting the same, by their names in the curve."""
    mean = {name: float(np.mean([getattr(group, name) for group in figures])) for name in GroupFigures._fields}
    return {
        "loss": mean["loss"],
        "mean_reward": mean["reward"],
        "reward_spread": mean["spread"],
        "mean_kl": mean["kl"],
        "mean_completion_tokens": mean["tokens"],
        "truncated": mean["truncated"],
        "entropy": mean["entropy"],
    }


def _iteration(iteration: int, figures: Sequence[GroupFigures], steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The history entry of an iteration: means over its groups; grad_norm over its steps; the last step's learning rate."""
    mean = _means(figures)
    return {
        "iteration": iteration,
        "groups": len(figures),
        "completions": sum(group.completions for group in figures),
        "mean_reward": mean["mean_reward"],
        "reward_spread": mean["reward_spread"],
        "mean_kl": mean["mean_kl"],
        "policy_loss": mean["loss"],
        "mean_completion_tokens": mean["mean_completion_tokens"],
        "flat_groups": float(np.mean([group.spread == 0 for group in figures])),
        "truncated": mean["truncated"],
        "entropy": mean["entropy"],
        "grad_norm": float(np.mean([step["grad_norm"] for step in steps])),
        "learning_rate": steps[-1]["learning_rate"],
    }


def _warning(entry: dict[str, Any]) -> str | None:
    flat, cut = entry["flat_groups"] == 1, entry["truncated"] == 1
    if cut and flat:
        return "no completion ended; the reward is constant within every group, so there is nothing to learn from"
    if flat:
        return "the reward is constant within every group, so there is nothing to learn from"
    return "no completion ended; every one was cut at max_new_tokens and scored at its last token" if cut else None

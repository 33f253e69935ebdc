"""The grpo stage's training: sample a group per prompt, score it, step the policy toward what beat its own group.

An accumulation window is up to `accumulation` prompts, in file order, within one iteration. All its completions are
drawn in one batch from the policy as it stands; the groups are then scored, compared with the frozen base and
back-propagated, a few in one pass, each divided by the groups that the window scored. Several processes share a window's
prompts when sampling, and its passes after that; each takes the same step, with the sum of all gradients.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stages.core.errors import TrainingError
from stages.core.progress import bar, say
from stages.core.settings.grpo import Grpo
from stages.core.stopping import undisturbed
from stages.files.history import HistoryFile
from stages.files.states import State
from stages.learning import schedule
from stages.learning.fitting import FittingPrompts
from stages.learning.metrics import first_not_finite
from stages.learning.objective import Advantages, GroupLoss, completion_means, group_advantages, group_loss, kl_k3
from stages.learning.optimizer import NotFiniteGradientError, Optimizer, count, remedy
from stages.learning.ranks import ALONE, GradientSum, Ranks
from stages.learning.resume import UNSAVED, Saving
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


class Drawn(NamedTuple):
    """A prompt's sampled completions."""

    place: int
    """Place of the prompt in its file."""
    prompt: list[int]
    completions: list[Completion]

    def whole(self) -> Completed:
        """What goes through the model."""
        return Completed(self.prompt, [completion.ids for completion in self.completions])


class Group(NamedTuple):
    """The same with their rewards and advantages."""

    place: int
    prompt: list[int]
    completions: list[Completion]
    rewards: Tensor
    """float64 [G]."""
    advantages: Advantages

    def whole(self) -> Completed:
        """What goes through the model."""
        return Completed(self.prompt, [completion.ids for completion in self.completions])


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


@dataclass
class Progress:
    """How far a training has come: what its saved state holds beside the tensors."""

    windows: int = 0
    """Accumulation windows that are done, those that took no step included: the planned steps so far."""
    refused_groups: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    figures: list[GroupFigures] = field(default_factory=list)
    """Of the iteration under way."""

    def state(self) -> State:
        """The progress to be saved."""
        return State(
            self.windows, {}, {"refused_groups": self.refused_groups, "steps": self.steps, "history": self.history, "figures": self.figures}
        )

    def resume(self, state: State) -> None:
        """Goes on from a saved one."""
        self.windows = state.step
        self.refused_groups, self.steps, self.history = (state.fields[key] for key in ("refused_groups", "steps", "history"))
        self.figures = [GroupFigures(*one) for one in state.fields["figures"]]


def planned_steps(prompts: int, settings: Grpo) -> int:
    """Optimizer steps of a run in which no window is refused whole; a window does not cross iterations.

    Raises TrainingError where the warm-up leaves no step after it.
    """
    steps = settings.iterations * _windows(prompts, settings)
    schedule.require_room("grpo", settings.warmup_steps, steps)
    return steps


def fit(
    adapters: Adapters,
    plan: Plan,
    scorer: Scorer,
    prompts: FittingPrompts,
    end_tokens: Sequence[int],
    settings: Grpo,
    history: HistoryFile,
    saving: Saving = UNSAVED,
    ranks: Ranks = ALONE,
) -> GrpoRun:
    """Trains a fresh policy adapter on P prompts, or goes on from a saved state; each of several `ranks` has its share of every window.

    Raises TrainingError where the warm-up leaves no step, a number is not finite (before any weight moves), or every
    group of an iteration is refused.
    """
    planned = planned_steps(len(prompts.ids), settings)
    windows = _windows(len(prompts.ids), settings)
    trainable = adapters.add_fresh(ADAPTER_NAME, plan, settings.seed)
    say(f"training {len(trainable)} adapter tensors ({count(trainable)} parameters) at rank {plan.rank} across {len(plan.layers)} layers")
    optimizer = Optimizer(trainable, planned, settings, "grpo")
    progress = Progress()
    keeper = saving.begin(trainable, optimizer, planned, progress.resume)
    history.begin(progress.steps)
    loop = _Loop(adapters, scorer, prompts, end_tokens, settings, ranks)
    gradients = GradientSum(trainable.values(), ranks)
    with bar(planned, "grpo") as advance, keeper.saved_when_broken_off(progress.state):
        advance(progress.windows)
        while progress.windows < planned:
            ranks.copy_first(trainable.values())
            step = progress.windows
            iteration, number = step // windows + 1, step % windows
            name = f"iteration {iteration}/{settings.iterations}"
            where = f"{name} step {step + 1}/{planned}"
            window = range(number * settings.accumulation, min((number + 1) * settings.accumulation, len(prompts.ids)))
            drawn, refused = loop.sampled(window, iteration, name, step)
            found, norm = [], 0.0
            if drawn:
                if not progress.steps:
                    ranks.say_idle(len(loop.passes(drawn)), "raise grpo.accumulation, or train in fewer")
                found = loop.back_propagated(drawn, gradients, name, step)
                gradients.finish()
                try:
                    norm = optimizer.clip(step, where)
                except NotFiniteGradientError as error:
                    loop.blame(drawn, trainable.values(), name, step, error)
                    raise
            with undisturbed():  # a step that is taken is told
                with keeper.step():
                    progress.refused_groups += refused
                    progress.windows += 1
                    if drawn:
                        optimizer.step(step)
                        row = {
                            "step": step + 1,
                            "iteration": iteration,
                            **_means(found),
                            "grad_norm": norm,
                            "learning_rate": optimizer.rate(step),
                        }
                        progress.steps.append(row)
                        progress.figures += found
                    if number + 1 == windows:
                        _end_iteration(progress, iteration, name)
                if drawn:
                    row = progress.steps[-1]
                    history.append(row)
                    say(f"{where} loss {row['loss']:.4f} reward {row['mean_reward']:.4f} kl {row['mean_kl']:.5f}")
                if number + 1 == windows:
                    _say_iteration(name, progress.history[-1])
                advance()
            keeper.saved_when_due(step + 1, progress.state)
    return GrpoRun(progress.steps, progress.history, planned, progress.refused_groups, _warning(progress.history[-1]))


def _windows(prompts: int, settings: Grpo) -> int:
    """Accumulation windows of an iteration."""
    return math.ceil(prompts / settings.accumulation)


def _end_iteration(progress: Progress, iteration: int, name: str) -> None:
    """Adds the iteration to the history; raises TrainingError where every group of it was refused."""
    if not progress.figures:
        raise TrainingError(
            f"grpo.empty_completions: {name}: every group was refused: a sampled completion was empty, so this group has nothing "
            "to score; set grpo.empty_completions=score, or give prompts that the base completes"
        )
    entry = _iteration(iteration, progress.figures, [step for step in progress.steps if step["iteration"] == iteration])
    progress.history.append(entry)
    progress.figures = []


def _say_iteration(name: str, entry: dict[str, Any]) -> None:
    say(
        f"{name} mean reward {entry['mean_reward']:.4f} spread {entry['reward_spread']:.4f} "
        f"mean kl {entry['mean_kl']:.5f} policy loss {entry['policy_loss']:.4f}"
    )
    if warning := _warning(entry):
        say(f"{name} warning: {warning}")


@dataclass(frozen=True)
class _Loop:
    """What every window is computed with."""

    adapters: Adapters
    scorer: Scorer
    prompts: FittingPrompts
    end_tokens: Sequence[int]
    settings: Grpo
    ranks: Ranks

    def sampled(self, window: range, iteration: int, name: str, step: int) -> tuple[list[Drawn], int]:
        """What was drawn for the window's prompts, each process sampling its share, and how many groups were refused."""
        for number in window:
            say(f"{name} prompt {self.prompts.indexes[number]} sampling {self.settings.group} completions")
        own = self.ranks.share(len(window))
        parts = self.ranks.gather(lambda: self._sample(window[own.start : own.stop], iteration, name, step) if own else [])
        every = [drawn for part in parts for drawn in part]
        kept = [drawn for drawn in every if self.settings.empty_completions == "score" or not any(one.empty for one in drawn.completions)]
        for place in sorted({drawn.place for drawn in every} - {drawn.place for drawn in kept}):
            say(f"{name} prompt {place}: a sampled completion was empty, so this group has nothing to score; the group is refused")
        return kept, len(every) - len(kept)

    def back_propagated(self, drawn: Sequence[Drawn], gradients: GradientSum, name: str, step: int) -> list[GroupFigures]:
        """Adds up the gradient of the groups' mean loss, each process by its share of the passes; gives the figures of all."""

        def work() -> list[GroupFigures]:
            found: list[GroupFigures] = []
            for together in self._own_passes(drawn):
                loss, figures = self._loss(self._scored(together, name), name, step)
                (loss / len(drawn)).backward()
                gradients.add()
                found += figures
            return found

        return [figures for part in self.ranks.gather(work) for figures in part]

    def blame(self, drawn: Sequence[Drawn], trainable: Iterable[nn.Parameter], name: str, step: int, error: NotFiniteGradientError) -> None:
        """Raises TrainingError with the prompt and the draw whose gradient is not finite, where one alone is that."""
        parameters = list(trainable)

        def broken(group: Group, draws: slice) -> bool:
            """Whether the gradient of these draws of the group is, with the advantages that they have in it."""
            part = group._replace(completions=group.completions[draws], advantages=group.advantages.of(draws))
            gradients = torch.autograd.grad(self._loss([part], name, step)[0], parameters, allow_unused=True)
            return not all(torch.isfinite(one).all() for one in gradients if one is not None)

        def work() -> str | None:
            for group in (group for together in self._own_passes(drawn) for group in self._scored(together, name)):
                if broken(group, slice(None)):
                    draw = next((draw for draw in range(len(group.completions)) if broken(group, slice(draw, draw + 1))), None)
                    return f"prompt {group.place}" + ("" if draw is None else f" draw {draw}")
            return None

        for culprit in self.ranks.gather(work):
            if culprit:
                raise TrainingError(f"{name} {culprit}: {error.what}") from error

    def _sample(self, window: range, iteration: int, name: str, step: int) -> list[Drawn]:
        indexes = [self.prompts.indexes[number] for number in window]
        settings = self.settings
        chooser = group_uniforms(settings.seed, iteration, indexes, settings.group, settings.max_new_tokens)
        self.adapters.use(ADAPTER_NAME)
        ids = [self.prompts.ids[number] for number in window]
        try:
            sampled = sample(self.adapters.passes, ids, chooser, settings.temperature, settings.top_p, self.end_tokens)
        except NotFiniteError as error:
            raise TrainingError(
                f"{name} prompt {indexes[error.prompt]} draw {error.draw}: the policy's distribution is not finite at "
                f"position {error.position}; {remedy('grpo', step)}"
            ) from error
        return [Drawn(*one) for one in zip(indexes, ids, sampled, strict=True)]

    def passes(self, drawn: Sequence[Drawn]) -> list[Sequence[Drawn]]:
        """The groups of each pass that a window is cut into."""
        return [drawn[one.start : one.stop] for one in runs([group.whole() for group in drawn], self.adapters.passes.fits)]

    def _own_passes(self, drawn: Sequence[Drawn]) -> list[Sequence[Drawn]]:
        """Those that are this process's."""
        passes = self.passes(drawn)
        own = self.ranks.share(len(passes))
        return passes[own.start : own.stop]

    def _scored(self, drawn: Sequence[Drawn], name: str) -> list[Group]:
        """The groups of one pass with their rewards; raises TrainingError where one is not finite. Leaves the policy on."""
        rewards = self.scorer.rewards([(one.prompt, one.completions) for one in drawn])
        self.adapters.use(ADAPTER_NAME)
        for one, found in zip(drawn, rewards, strict=True):
            if (draw := first_not_finite(found.numpy())) is not None:
                raise TrainingError(
                    f"{name} prompt {one.place} draw {draw}: the reward is {float(found[draw])}, which is not finite; no weight was moved"
                )
        return [Group(*one, found, group_advantages(found)) for one, found in zip(drawn, rewards, strict=True)]

    def _loss(self, groups: Sequence[Group], name: str, step: int) -> tuple[Tensor, list[GroupFigures]]:
        """The sum of these groups' losses, by one pass of the base and one of the policy; and what each contributed."""
        passes = self.adapters.passes
        whole = [group.whole() for group in groups]
        with torch.no_grad(), self.adapters.using(None, then=ADAPTER_NAME):
            reference = passes.token_scores(whole, self.settings.temperature)
        policy = passes.token_scores(whole, self.settings.temperature)
        losses, figures = [], []
        for group, ours, base in zip(groups, policy, reference, strict=True):
            lengths = torch.tensor([len(completion.ids) for completion in group.completions], device=ours.log_probs.device)
            parts = group_loss(ours.log_probs, base.log_probs, lengths, group.advantages, self.settings.beta)
            if not torch.isfinite(parts.loss):
                kls = completion_means(kl_k3(ours.log_probs.detach(), base.log_probs), lengths)
                draw = first_not_finite(kls.cpu().numpy())
                raise TrainingError(
                    f"{name} prompt {group.place}{'' if draw is None else f' draw {draw}'}: the loss is not finite "
                    f"(kl {float(parts.kl.detach())}); no weight was moved; {remedy('grpo', step)}"
                )
            losses.append(parts.loss)
            figures.append(_figures(group, parts, float(completion_means(ours.entropy, lengths).mean())))
        return torch.stack(losses).sum(), figures


def _figures(group: Group, parts: GroupLoss, entropy: float) -> GroupFigures:
    return GroupFigures(
        loss=float(parts.loss.detach()),
        reward=float(group.rewards.mean()),
        spread=group.advantages.denominator / len(group.completions),
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

"""The grpo stage's training: rounds of sampling and stepping, window by window, and what is measured of them.

An accumulation window is up to `accumulation` prompts, in file order, within one iteration; its completions are stepped on
`updates` times. Several processes each have a share of a window; each takes the same step, with the sum of all gradients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stages.core.errors import TrainingError
from stages.core.progress import bar, say
from stages.core.settings.grpo import Grpo
from stages.core.settings.reward_parts import parts_of
from stages.core.stopping import undisturbed
from stages.files.history import HistoryFile
from stages.files.states import State
from stages.learning import schedule
from stages.learning.fitting import FittingPrompts
from stages.learning.optimizer import NotFiniteGradientError, Optimizer, count
from stages.learning.ranks import ALONE, GradientSum, Ranks
from stages.learning.resume import UNSAVED, Saving
from stages.learning.reward_source import Scorer
from stages.learning.rounds import ADAPTER_NAME, START_NAME, GroupFigures, Rounds
from stages.learning.trained import Tensors
from stages.model.adapters import Adapters, Plan

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
CLIPPED = "clipped"
"""One more of them where a window is stepped on several times: the share of ratios that the clip holds."""
PART = "part_"
"""One more for each of several rewards: this and its name, its mean before its weight."""


@dataclass(frozen=True)
class GrpoRun:
    """What a training run measured."""

    steps: list[dict[str, Any]]
    """Rows of the curve."""
    history: list[dict[str, Any]]
    """One entry per iteration."""
    planned_steps: int
    refused_groups: int
    unrated_groups: int
    """Of those refused: in which a completion has no reward."""
    warning: str | None
    """What a reader must know before believing the last iteration; None where there is nothing."""


@dataclass
class Progress:
    """How far a training has come: what its saved state holds beside the tensors."""

    over: int = 0
    """Planned steps that are over, those of windows that took none included."""
    refused_groups: int = 0
    unrated_groups: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    figures: list[GroupFigures] = field(default_factory=list)
    """Of the iteration under way."""

    def state(self) -> State:
        """The progress to be saved."""
        counts = {"refused_groups": self.refused_groups, "unrated_groups": self.unrated_groups}
        return State(self.over, {}, {**counts, "steps": self.steps, "history": self.history, "figures": self.figures})

    def resume(self, state: State) -> None:
        """Goes on from a saved one."""
        self.over = state.step
        self.refused_groups, self.unrated_groups = (state.fields[key] for key in ("refused_groups", "unrated_groups"))
        self.steps, self.history = (state.fields[key] for key in ("steps", "history"))
        self.figures = [GroupFigures(*one) for one in state.fields["figures"]]


def columns(settings: Grpo) -> tuple[str, ...]:
    """Those of the run's curve."""
    clipped = () if settings.updates == 1 else (CLIPPED,)
    return (*CURVE, *clipped, *(PART + name for name in _parts(settings)))


def _parts(settings: Grpo) -> list[str]:
    """The names of the parts of a reward that has several."""
    names = [part.called for part in parts_of(settings.reward)]
    return names if len(names) > 1 else []


def planned_steps(prompts: int, settings: Grpo) -> int:
    """Optimizer steps of a run in which no window is refused whole; a window does not cross iterations.

    Raises TrainingError where the warm-up leaves no step after it.
    """
    steps = settings.iterations * _windows(prompts, settings) * settings.updates
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
    start: Tensors | None = None,
) -> GrpoRun:
    """Trains a policy adapter on P prompts, or goes on from a saved state; each of several `ranks` has its share of every window.

    The adapter is fresh, or has the factors of `start`, which it is then held against in place of the base. Raises TrainingError
    where the warm-up leaves no step, a number is not finite (before any weight moves), or every group of an iteration is refused.
    """
    planned = planned_steps(len(prompts.ids), settings)
    windows = _windows(len(prompts.ids), settings)
    trainable = adapters.add_fresh(ADAPTER_NAME, plan, settings.seed)
    if start is not None:
        adapters.add_trained(START_NAME, plan.rank, plan.alpha, start)
        adapters.copy_into(ADAPTER_NAME, start)
    say(f"training {len(trainable)} adapter tensors ({count(trainable)} parameters) at rank {plan.rank} across {len(plan.layers)} layers")
    optimizer = Optimizer(trainable, planned, settings, "grpo")
    progress = Progress()
    keeper = saving.begin(trainable, optimizer, planned, progress.resume)
    history.begin(progress.steps)
    rounds = Rounds(adapters, scorer, prompts, end_tokens, settings, ranks, None if start is None else START_NAME)
    gradients = GradientSum(trainable.values(), ranks)
    with bar(planned, "grpo") as advance, keeper.saved_when_broken_off(progress.state):
        advance(progress.over)
        while progress.over < planned:
            ranks.copy_first(trainable.values())
            first = progress.over
            done, number = divmod(first // settings.updates, windows)
            name = f"iteration {done + 1}/{settings.iterations}"
            places = range(number * settings.accumulation, min((number + 1) * settings.accumulation, len(prompts.ids)))
            drawn, refused = rounds.sampled(places, done + 1, name, first)
            if drawn and not progress.steps:
                ranks.say_idle(len(rounds.passes(drawn)), "raise grpo.accumulation, or train in fewer")
            window = rounds.scored(drawn, name) if drawn else None
            unrated = window.refused if window else 0
            window = window if window and window.groups else None
            for step in range(first, first + settings.updates):
                last = step + 1 == first + settings.updates
                where = f"{name} step {step + 1}/{planned}"
                found, norm = [], 0.0
                if window:
                    if step > first:
                        ranks.copy_first(trainable.values())
                    found = rounds.back_propagated(window, gradients, name, step)
                    gradients.finish()
                    try:
                        norm = optimizer.clip(step, where)
                    except NotFiniteGradientError as error:
                        rounds.blame(window, trainable.values(), name, step, error)
                        raise
                with undisturbed():  # a step that is taken is told
                    with keeper.step(whole=last):
                        progress.over += 1
                        if window:
                            optimizer.step(step)
                            row: dict[str, Any] = {"step": step + 1, "iteration": done + 1, **_means(found), "grad_norm": norm}
                            row |= {"learning_rate": optimizer.rate(step), CLIPPED: _mean(found, CLIPPED)}
                            row |= {PART + part: _part(found, part, 0) for part in _parts(settings)}
                            progress.steps.append({column: row[column] for column in columns(settings)})
                            progress.figures += found
                        if last:
                            progress.refused_groups += refused + unrated
                            progress.unrated_groups += unrated
                        if last and number + 1 == windows:
                            _end_iteration(progress, done + 1, settings)
                    if window:
                        history.append(progress.steps[-1])
                        say(f"{where} {_said(progress.steps[-1])}")
                    if last and number + 1 == windows:
                        _say_iteration(name, progress.history[-1], settings)
                    advance()
            keeper.saved_when_due(first + settings.updates, settings.updates, progress.state)
    return GrpoRun(
        progress.steps,
        progress.history,
        planned,
        progress.refused_groups,
        progress.unrated_groups,
        _warning(progress.history[-1], settings),
    )


def _windows(prompts: int, settings: Grpo) -> int:
    """Accumulation windows of an iteration."""
    return math.ceil(prompts / settings.accumulation)


def _end_iteration(progress: Progress, iteration: int, settings: Grpo) -> None:
    """Adds the iteration to the history; raises TrainingError where every group of it was refused."""
    if not progress.figures and progress.unrated_groups:
        raise TrainingError(
            f"grpo.reward: iteration {iteration}/{settings.iterations}: every group was refused: a completion of each has no reward, "
            f"since all that there are abstained, or was empty ({progress.unrated_groups} and "
            f"{progress.refused_groups - progress.unrated_groups} groups so far); give rows the columns that the reward reads, or name a "
            "reward that rates every completion"
        )
    if not progress.figures:
        raise TrainingError(
            f"grpo.empty_completions: iteration {iteration}/{settings.iterations}: every group was refused: a sampled completion was "
            "empty, so this group has nothing to score; set grpo.empty_completions=score, or give prompts that the base completes"
        )
    steps = [step for step in progress.steps if step["iteration"] == iteration]
    progress.history.append(_iteration(iteration, progress.figures, steps, settings))
    progress.figures = []


def _said(row: dict[str, Any]) -> str:
    """A step's line."""
    clipped = f" clipped {row[CLIPPED]:.4f}" if CLIPPED in row else ""
    return f"loss {row['loss']:.4f} reward {row['mean_reward']:.4f} kl {row['mean_kl']:.5f}{clipped}"


def _say_iteration(name: str, entry: dict[str, Any], settings: Grpo) -> None:
    say(
        f"{name} mean reward {entry['mean_reward']:.4f} spread {entry['reward_spread']:.4f} "
        f"mean kl {entry['mean_kl']:.5f} policy loss {entry['policy_loss']:.4f}"
    )
    if warning := _warning(entry, settings):
        say(f"{name} warning: {warning}")


def _mean(figures: Sequence[GroupFigures], name: str) -> float:
    """A figure's mean over several groups, each group counting the same."""
    return float(np.mean([getattr(group, name) for group in figures]))


def _part(figures: Sequence[GroupFigures], part: str, place: int) -> float | None:
    """A figure of one of several rewards, its mean over the groups that have it; null where none has."""
    there = [value for group in figures if (value := group.parts[part][place]) is not None]
    return float(np.mean(there)) if there else None


def _means(figures: Sequence[GroupFigures]) -> dict[str, float]:
    """The figures of several groups by their names in the curve."""
    return {
        "loss": _mean(figures, "loss"),
        "mean_reward": _mean(figures, "reward"),
        "reward_spread": _mean(figures, "spread"),
        "mean_kl": _mean(figures, "kl"),
        "mean_completion_tokens": _mean(figures, "tokens"),
        "truncated": _mean(figures, "truncated"),
        "entropy": _mean(figures, "entropy"),
    }


def _iteration(iteration: int, figures: Sequence[GroupFigures], steps: Sequence[dict[str, Any]], settings: Grpo) -> dict[str, Any]:
    """The history entry of an iteration: means over its groups, at each of their updates; grad_norm over its steps; the last rate."""
    mean = _means(figures)
    entry = {
        "iteration": iteration,
        "groups": len(figures) // settings.updates,
        "completions": sum(group.completions for group in figures) // settings.updates,
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
    if settings.updates > 1:
        entry |= {CLIPPED: _mean(figures, CLIPPED)}
    if parts := _parts(settings):
        of_part = ("mean_reward", "reward_spread", "abstained")
        entry["parts"] = {part: {key: _part(figures, part, place) for place, key in enumerate(of_part)} for part in parts}
    return entry


def _warning(entry: dict[str, Any], settings: Grpo) -> str | None:
    flat, cut = entry["flat_groups"] == 1, entry["truncated"] == 1
    if cut and settings.mask_truncated:
        return "no completion ended; every one was cut at max_new_tokens and left out of the loss, so there is nothing to learn from"
    if cut and flat:
        return "no completion ended; the reward is constant within every group, so there is nothing to learn from"
    if flat:
        return "the reward is constant within every group, so there is nothing to learn from"
    return "no completion ended; every one was cut at max_new_tokens and scored at its last token" if cut else None

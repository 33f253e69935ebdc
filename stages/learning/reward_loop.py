"""The reward stage's training: Bradley-Terry over shuffled pairs, adapters and head under one AdamW.

Several processes share each window's batches; every one takes the same step, with the sum of all gradients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stages.core.errors import TrainingError
from stages.core.progress import bar, say
from stages.core.settings.reward import Reward
from stages.core.stopping import undisturbed
from stages.files.history import HistoryFile
from stages.files.states import State
from stages.learning import schedule
from stages.learning.fitting import FittingPairs
from stages.learning.metrics import Floats, first_not_finite, pair_order
from stages.learning.objective import bradley_terry
from stages.learning.optimizer import NotFiniteGradientError, Optimizer, count, remedy
from stages.learning.ranks import ALONE, GradientSum, Ranks
from stages.learning.resume import UNSAVED, Saving
from stages.model.adapters import Plan
from stages.model.groups import sharing
from stages.model.rendering import EncodedPair
from stages.model.reward_model import RewardModel

CURVE = ("step", "epoch", "loss", "accuracy", "mean_score_margin", "grad_norm", "learning_rate")
"""Columns of reports/plots/reward.csv, a row per optimizer step."""


class Scores(NamedTuple):
    """Of B pairs, float64 [B] each."""

    loss: Floats
    chosen: Floats
    rejected: Floats


@dataclass(frozen=True)
class RewardRun:
    """What a training run measured; the last epoch's figures are of its training passes, before each step."""

    steps: list[dict[str, Any]]
    """Rows of the curve."""
    first_loss: float
    final_loss: float
    mean_final_epoch_loss: float
    accuracy: float
    tied_pairs: int
    mean_chosen_score: float
    mean_rejected_score: float
    mean_score_margin: float


@dataclass
class Progress:
    """How far a training has come: what its saved state holds beside the tensors."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    """Of the epoch under way, or the last one, a part per step."""

    def state(self) -> State:
        """The progress to be saved."""
        tensors = dict(zip(Scores._fields, self.epoch_scores(), strict=True)) if self.scores else {}
        return State(len(self.steps), tensors, {"steps": self.steps})

    def resume(self, state: State) -> None:
        """Goes on from a saved one."""
        self.steps = state.fields["steps"]
        self.scores = [Scores(*(state.tensors[name] for name in Scores._fields))]

    def epoch_scores(self) -> Scores:
        """Those of the epoch so far, in the order of its pairs."""
        return Scores(*map(np.concatenate, zip(*self.scores, strict=True)))


def planned_steps(pairs: int, settings: Reward) -> int:
    """Optimizer steps of a run; a window does not cross epochs. Raises TrainingError where the warm-up leaves no step after it."""
    steps = settings.epochs * _windows(pairs, settings)
    schedule.require_room("reward", settings.warmup_steps, steps)
    return steps


def fit(
    reward_model: RewardModel,
    plan: Plan,
    pairs: FittingPairs,
    settings: Reward,
    history: HistoryFile,
    saving: Saving = UNSAVED,
    ranks: Ranks = ALONE,
) -> RewardRun:
    """Trains the reward model on B pairs, or goes on from a saved state; each of several `ranks` has its share of every window.

    Raises TrainingError where the warm-up leaves no step, or a number is not finite (before any weight moves).
    """
    count_pairs = len(pairs.pairs)
    planned, windows = planned_steps(count_pairs, settings), _windows(count_pairs, settings)
    trainable = reward_model.trainable()
    say(f"training {len(trainable)} tensors ({count(trainable)} parameters) at rank {plan.rank} across {len(plan.layers)} layers")
    optimizer = Optimizer(trainable, planned, settings, "reward")
    progress = Progress()
    keeper = saving.begin(trainable, optimizer, planned, progress.resume)
    history.begin(progress.steps)
    gradients = GradientSum(trainable.values(), ranks)
    most = math.ceil(min(settings.accumulation, count_pairs) / settings.batch_size)
    ranks.say_idle(most, "lower reward.batch_size, or raise reward.accumulation")
    with bar(planned, "reward") as advance, keeper.saved_when_broken_off(progress.state):
        advance(len(progress.steps))
        while len(progress.steps) < planned:
            ranks.copy_first(trainable.values())
            step = len(progress.steps)
            epoch, number = divmod(step, windows)
            window = shuffled(count_pairs, settings.seed, epoch)[number * settings.accumulation : (number + 1) * settings.accumulation]
            where = f"epoch {epoch + 1}/{settings.epochs} step {step + 1}/{planned}"
            scores = _accumulated(reward_model, pairs, window, settings.batch_size, where, step, gradients, ranks)
            gradients.finish()
            try:
                norm = optimizer.clip(step, where)
            except NotFiniteGradientError as error:
                _blame(reward_model, pairs, window, where, error)
                raise
            with undisturbed():  # a step that is taken is told
                with keeper.step():
                    optimizer.step(step)
                    if number == 0:
                        progress.scores = []
                    progress.scores.append(scores)
                    ordered = pair_order(scores.chosen, scores.rejected)
                    row = {
                        "step": step + 1,
                        "epoch": epoch + 1,
                        "loss": float(scores.loss.mean()),
                        "accuracy": float(ordered.correct.mean()),
                        "mean_score_margin": float(ordered.margins.mean()),
                        "grad_norm": norm,
                        "learning_rate": optimizer.rate(step),
                    }
                    progress.steps.append(row)
                history.append(row)
                say(f"{where} loss {row['loss']:.4f} accuracy {row['accuracy']:.3f} score margin {row['mean_score_margin']:.4f}")
                if number + 1 == windows:
                    _say_epoch(f"epoch {epoch + 1}/{settings.epochs}", progress.epoch_scores())
                advance()
            keeper.saved_when_due(step + 1, 1, progress.state)
    last = progress.epoch_scores()
    ordered = pair_order(last.chosen, last.rejected)
    return RewardRun(
        steps=progress.steps,
        first_loss=progress.steps[0]["loss"],
        final_loss=progress.steps[-1]["loss"],
        mean_final_epoch_loss=float(last.loss.mean()),
        accuracy=float(ordered.correct.mean()),
        tied_pairs=ordered.tied_pairs,
        mean_chosen_score=float(last.chosen.mean()),
        mean_rejected_score=float(last.rejected.mean()),
        mean_score_margin=float(ordered.margins.mean()),
    )


def _windows(pairs: int, settings: Reward) -> int:
    """Accumulation windows of an epoch."""
    return math.ceil(pairs / settings.accumulation)


def _say_epoch(name: str, scores: Scores) -> None:
    ordered = pair_order(scores.chosen, scores.rejected)
    say(
        f"{name} mean loss {scores.loss.mean():.4f} accuracy {ordered.correct.mean():.3f} "
        f"ties {ordered.tied_pairs}/{len(scores.loss)} score margin {ordered.margins.mean():.4f}"
    )


def shuffled(pairs: int, seed: int, epoch: int) -> list[int]:
    """The order of the pairs in an epoch, a function of (seed, epoch) alone."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))
    return [int(index) for index in generator.permutation(pairs)]


def _accumulated(
    reward_model: RewardModel,
    pairs: FittingPairs,
    window: Sequence[int],
    batch_size: int,
    where: str,
    step: int,
    gradients: GradientSum,
    ranks: Ranks,
) -> Scores:
    """Scores of a window's pairs; the gradient of their mean loss is added up, each process taking its share of the batches."""
    batches = [window[start : start + batch_size] for start in range(0, len(window), batch_size)]
    own = ranks.share(len(batches))

    def work() -> list[Scores]:
        found = []
        for batch in batches[own.start : own.stop]:
            sides = _both_sides(reward_model, [pairs.pairs[index] for index in batch])
            losses = bradley_terry(*sides).double()
            (losses.sum() / len(window)).backward()
            gradients.add()
            scores = Scores(*(one.detach().double().cpu().numpy() for one in (losses, *sides)))
            if (broken := first_not_finite(scores.loss)) is not None:
                place = pairs.indexes[batch[broken]]
                raise TrainingError(
                    f"{where}: the loss of training pair {place} is not finite; no weight was moved; {remedy('reward', step)}"
                )
            found.append(scores)
        return found

    return Scores(*map(np.concatenate, zip(*(one for part in ranks.gather(work) for one in part), strict=True)))


def _both_sides(reward_model: RewardModel, pairs: Sequence[EncodedPair]) -> tuple[Tensor, Tensor]:
    """Scores of the chosen and of the rejected sides, float32 [B] twice; carries the gradient."""
    scores = reward_model.scores([sharing(pair) for pair in pairs])
    return scores[0::2], scores[1::2]


def _blame(reward_model: RewardModel, pairs: FittingPairs, window: Sequence[int], where: str, error: NotFiniteGradientError) -> None:
    """Raises TrainingError with the pair whose gradient is not finite, where one alone is that; each is computed alone."""
    parameters = list(reward_model.trainable().values())
    for index in window:
        loss = bradley_terry(*_both_sides(reward_model, [pairs.pairs[index]])).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        if not all(torch.isfinite(one).all() for one in gradients if one is not None):
            raise TrainingError(f"{where} training pair {pairs.indexes[index]}: {error.what}") from error

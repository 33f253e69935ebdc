"""The reward stage's training: Bradley-Terry over shuffled pairs, adapters and head under one AdamW."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.core.errors import TrainingError
from stages.core.progress import bar, say
from stages.core.settings.reward import Reward
from stages.files.history import HistoryFile
from stages.learning import schedule
from stages.learning.metrics import first_not_finite, pair_order
from stages.learning.objective import bradley_terry
from stages.learning.optimizer import Optimizer, count, remedy
from stages.model.adapters import Plan
from stages.model.groups import sharing
from stages.model.rendering import EncodedPair
from stages.model.reward_model import RewardModel

CURVE = ("step", "epoch", "loss", "accuracy", "mean_score_margin", "grad_norm", "learning_rate")
"""Columns of reports/plots/reward.csv, a row per optimizer step."""


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


def planned_steps(pairs: int, settings: Reward) -> int:
    """Optimizer steps of a run; a window does not cross epochs. Raises TrainingError where the warm-up leaves no step after it."""
    steps = settings.epochs * math.ceil(pairs / settings.accumulation)
    schedule.require_room("reward", settings.warmup_steps, steps)
    return steps


def fit(reward_model: RewardModel, plan: Plan, pairs: Sequence[EncodedPair], settings: Reward, history: HistoryFile) -> RewardRun:
    """Trains the reward model on B pairs; raises TrainingError where the warm-up leaves no step or a number is not finite."""
    steps = planned_steps(len(pairs), settings)
    trainable = reward_model.trainable()
    say(f"training {len(trainable)} tensors ({count(trainable)} parameters) at rank {plan.rank} across {len(plan.layers)} layers")
    optimizer = Optimizer(trainable, steps, settings, "reward")
    rows: list[dict[str, Any]] = []
    with bar(steps, "reward") as advance:
        for epoch in range(settings.epochs):
            losses, chosen, rejected = [], [], []
            order = shuffled(len(pairs), settings.seed, epoch)
            for start in range(0, len(order), settings.accumulation):
                window = order[start : start + settings.accumulation]
                where = f"epoch {epoch + 1}/{settings.epochs} step {len(rows) + 1}/{steps}"
                scores = _accumulate(reward_model, [pairs[index] for index in window], settings.batch_size)
                loss = bradley_terry(*scores).double().cpu().numpy()
                if (broken := first_not_finite(loss)) is not None:
                    raise TrainingError(
                        f"{where}: the loss of training pair {window[broken]} is not finite; "
                        f"no weight was moved; {remedy('reward', len(rows))}"
                    )
                norm = optimizer.step(len(rows), where)
                numbers = [side.double().cpu().numpy() for side in scores]
                ordered = pair_order(*numbers)
                row = {
                    "step": len(rows) + 1,
                    "epoch": epoch + 1,
                    "loss": float(loss.mean()),
                    "accuracy": float(ordered.correct.mean()),
                    "mean_score_margin": float(ordered.margins.mean()),
                    "grad_norm": norm,
                    "learning_rate": optimizer.rate(len(rows)),
                }
                rows.append(row)
                history.append(row)
                say(f"{where} loss {row['loss']:.4f} accuracy {row['accuracy']:.3f} score margin {row['mean_score_margin']:.4f}")
                losses.append(loss)
                chosen.append(numbers[0])
                rejected.append(numbers[1])
                advance()
            ordered = pair_order(np.concatenate(chosen), np.concatenate(rejected))
            say(
                f"epoch {epoch + 1}/{settings.epochs} mean loss {np.concatenate(losses).mean():.4f} accuracy {ordered.correct.mean():.3f} "
                f"ties {ordered.tied_pairs}/{len(pairs)} score margin {ordered.margins.mean():.4f}"
            )
    return RewardRun(
        steps=rows,
        first_loss=rows[0]["loss"],
        final_loss=rows[-1]["loss"],
        mean_final_epoch_loss=float(np.concatenate(losses).mean()),
        accuracy=float(ordered.correct.mean()),
        tied_pairs=ordered.tied_pairs,
        mean_chosen_score=float(np.concatenate(chosen).mean()),
        mean_rejected_score=float(np.concatenate(rejected).mean()),
        mean_score_margin=float(ordered.margins.mean()),
    )


def shuffled(pairs: int, seed: int, epoch: int) -> list[int]:
    """The order of the pairs in an epoch, a function of (seed, epoch) alone."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))
    return [int(index) for index in generator.permutation(pairs)]


def _accumulate(reward_model: RewardModel, window: Sequence[EncodedPair], batch_size: int) -> tuple[Tensor, Tensor]:
    """Scores of a window's pairs, float32 [B] twice; the gradient of their mean loss is added up batch by batch."""
    chosen, rejected = [], []
    for start in range(0, len(window), batch_size):
        batch = window[start : start + batch_size]
        scores = reward_model.scores([sharing(pair) for pair in batch])
        sides = scores[0::2], scores[1::2]
        (bradley_terry(*sides).double().sum() / len(window)).backward()
        chosen.append(sides[0].detach())
        rejected.append(sides[1].detach())
    return torch.cat(chosen), torch.cat(rejected)

"""The reward stage's report."""

from collections.abc import Sequence
from typing import Any

from stages.core import layout
from stages.core.settings.reward import Reward
from stages.files import outputs
from stages.files.base_record import BaseRecord
from stages.files.records import Pair
from stages.learning.fitting import FittingPairs
from stages.learning.reward_loop import RewardRun
from stages.learning.trained import Tensors, adapter_fields, size_fields
from stages.model.adapters import Plan


def reward_report(
    run: RewardRun,
    base: BaseRecord,
    plan: Plan,
    settings: Reward,
    pairs: Sequence[Pair],
    fitted: FittingPairs,
    tensors: Tensors,
    unknown: int,
) -> dict[str, Any]:
    """reports/reward.json; the trait is named where all pairs name the same one."""
    traits = {pair.trait_name for pair in pairs}
    return {
        "trait_name": traits.pop() if len(traits) == 1 else None,
        "pairs": len(pairs),
        "pairs_sha256": outputs.file_digest(layout.TRAIN_PAIRS),
        "trained_pairs": len(fitted.pairs),
        "skipped_long": fitted.skipped_long,
        **fitted.figures,
        "unknown_tokens": unknown,
        "epochs": settings.epochs,
        "steps": len(run.steps),
        **size_fields(tensors),
        "first_loss": run.first_loss,
        "final_loss": run.final_loss,
        "mean_final_epoch_loss": run.mean_final_epoch_loss,
        "accuracy": run.accuracy,
        "tied_pairs": run.tied_pairs,
        "mean_chosen_score": run.mean_chosen_score,
        "mean_rejected_score": run.mean_rejected_score,
        "mean_score_margin": run.mean_score_margin,
        **adapter_fields(plan),
        "learning_rate": settings.learning_rate,
        "accumulation": settings.accumulation,
        "batch": settings.batch_size,
        "seed": settings.seed,
        "chat_template": base.chat_template,
        "precision": base.precision,
    }

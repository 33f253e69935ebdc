"""The grpo stage's report."""

from collections.abc import Sequence
from typing import Any

from stages.core import layout
from stages.core.settings.grpo import Grpo
from stages.files import outputs
from stages.files.base_record import BaseRecord
from stages.files.records import Prompt
from stages.learning import start
from stages.learning.fitting import FittingPrompts
from stages.learning.grpo_loop import GrpoRun
from stages.learning.reward_source import RewardSource
from stages.learning.trained import Tensors, adapter_fields, size_fields
from stages.model.adapters import Plan


def grpo_report(
    run: GrpoRun,
    reward: RewardSource,
    base: BaseRecord,
    plan: Plan,
    settings: Grpo,
    prompts: Sequence[Prompt],
    fitted: FittingPrompts,
    tensors: Tensors,
    unknown: int,
) -> dict[str, Any]:
    """reports/grpo.json; the means at its top are the last iteration's."""
    last = run.history[-1]
    return {
        "reward": reward.name,
        "reward_parts": reward.record(),
        start.RECORD: start.record(settings.init_adapter),
        "prompts": len(prompts),
        "prompts_sha256": outputs.file_digest(layout.TRAIN_PROMPTS),
        "trained_prompts": len(fitted.ids),
        "skipped_long": fitted.skipped_long,
        **fitted.figures,
        "unknown_tokens": unknown,
        "refused_groups": run.refused_groups,
        "unrated_groups": run.unrated_groups,
        "group": settings.group,
        "iterations": settings.iterations,
        "steps": len(run.steps),
        "planned_steps": run.planned_steps,
        "beta": settings.beta,
        **size_fields(tensors),
        "first_loss": run.steps[0]["loss"],
        "final_loss": run.steps[-1]["loss"],
        "mean_reward": last["mean_reward"],
        "mean_kl": last["mean_kl"],
        "policy_loss": last["policy_loss"],
        "warning": run.warning,
        "max_new_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "log_probabilities": "tempered, before top-p",
        **variant_fields(settings),
        "empty_completions": settings.empty_completions,
        "seed": settings.seed,
        **adapter_fields(plan),
        "learning_rate": settings.learning_rate,
        "accumulation": settings.accumulation,
        "chat_template": base.chat_template,
        "precision": base.precision,
        "history": run.history,
    }


def variant_fields(settings: Grpo) -> dict[str, Any]:
    """What the objective is a variant of; the clip where it is ever used."""
    clip = {"clip_low": settings.clip_low, "clip_high": settings.clip_high} if settings.updates > 1 else {}
    return {
        "updates": settings.updates,
        **clip,
        "importance_sampling_level": settings.importance_sampling_level,
        "aggregation": settings.aggregation,
        "scale_rewards": settings.scale_rewards,
        "mask_truncated": settings.mask_truncated,
    }

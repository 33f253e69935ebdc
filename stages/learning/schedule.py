"""The learning rate of each optimizer step: linear warm-up, then cosine to zero."""

import math

from stages.core.errors import TrainingError


def require_room(section: str, warmup_steps: int, steps: int) -> None:
    """Raises TrainingError where the warm-up leaves no step after it."""
    if warmup_steps >= steps:
        raise TrainingError(
            f"{section}.warmup_steps: {warmup_steps} warm-up steps are not below the {steps} steps of this run; "
            f"lower {section}.warmup_steps or train for more steps"
        )


def learning_rate(step: int, steps: int, peak: float, warmup_steps: int) -> float:
    """The rate at `step` (from 0) of `steps`: peak*(step+1)/warmup_steps while warming up, then half a cosine to zero.

    The cosine reaches zero at `steps`, one past the last step, so that no step is taken at a rate of zero.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / (steps - warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))

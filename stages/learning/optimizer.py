"""AdamW over adapter tensors, one guarded step at a time."""

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from stages.core.errors import TrainingError
from stages.learning import schedule

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What torch's AdamW keeps of each parameter."""


class NotFiniteGradientError(TrainingError):
    """A gradient that is not finite: lower the learning rate."""

    def __init__(self, where: str, what: str) -> None:
        self.what = what
        super().__init__(f"{where}: {what}")


class Settings(Protocol):
    """What the sections `reward` and `grpo` both say of the optimizer; each loop passes its own."""

    @property
    def learning_rate(self) -> float:
        """The peak rate."""

    @property
    def warmup_steps(self) -> int:
        """Steps of linear warm-up."""

    @property
    def weight_decay(self) -> float:
        """AdamW's, decoupled."""

    @property
    def max_grad_norm(self) -> float:
        """The norm that the gradient is clipped to."""


class Optimizer:
    """torch's AdamW with its gradient clipping, the rate of each planned step, and a stop before a step that is not finite."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], planned_steps: int, settings: Settings, section: str) -> None:
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._adamw = torch.optim.AdamW(self._parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
        self._planned_steps, self._settings, self._section = planned_steps, settings, section

    def state(self) -> dict[str, Tensor]:
        """What a run that goes on needs beside the parameters: AdamW's two moments of each, and how many steps it has taken."""
        state = self._adamw.state_dict()["state"]
        return {f"{name}.{key}": value for number, name in enumerate(self._names) for key, value in state.get(number, {}).items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `state` gave; raises KeyError where a part of it is missing."""
        own = self._adamw.state_dict()
        if state:
            own["state"] = {number: {key: state[f"{name}.{key}"] for key in MOMENTS} for number, name in enumerate(self._names)}
        self._adamw.load_state_dict(own)

    def rate(self, step: int) -> float:
        """The learning rate of a planned step, from 0."""
        return schedule.learning_rate(step, self._planned_steps, self._settings.learning_rate, self._settings.warmup_steps)

    def clip(self, step: int, where: str) -> float:
        """Clips the gradients and returns their norm before; raises NotFiniteGradientError, naming `where`, if that is not finite."""
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm))
        if not math.isfinite(norm):
            raise NotFiniteGradientError(where, f"the gradient is not finite ({norm}); no weight was moved; {remedy(self._section, step)}")
        return norm

    def step(self, step: int) -> None:
        """Moves the parameters by the gradients as they are, and clears those."""
        for group in self._adamw.param_groups:
            group["lr"] = self.rate(step)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)


def remedy(section: str, steps: int) -> str:
    """What to change where a number is not finite after so many steps: before the first, the learning rate is not the cause."""
    if steps:
        return f"lower {section}.learning_rate"
    return f"no step was taken yet, so look at {section}.alpha and at the base's own weights"


def count(parameters: Mapping[str, nn.Parameter]) -> int:
    """How many numbers the tensors hold together."""
    return sum(parameter.numel() for parameter in parameters.values())

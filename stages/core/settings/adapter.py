"""What the settings of both adapters share: the checks of targets, layers and the optimizer's numbers."""

import re

from stages.core.settings.schema import Check, at_least, finite_above_zero, finite_from_zero, not_empty

Layers = str | list[int]
"""`all`, a list of layer numbers, or a half-open range `8..16`."""

ALL_LINEAR = "all-linear"

rank = at_least(1, "a LoRA rank must be at least one")
alpha = finite_above_zero("alpha must be a finite number above zero")
warmup_steps = at_least(0, "warmup_steps must be zero or more")
weight_decay = finite_from_zero("weight_decay must be a finite number of zero or more")
max_grad_norm = finite_above_zero("max_grad_norm must be a finite number above zero")
targets: Check = not_empty("at least one target module is expected, such as [q_proj, v_proj], or all-linear")


def layers(value: Layers) -> str | None:
    """Passes `all`, `8..16` and lists of distinct layer numbers; whether the model has them is seen when it is loaded."""
    if isinstance(value, str):
        span = re.fullmatch(r"([0-9]{1,6})\.\.([0-9]{1,6})", value)
        if value == "all" or (span and int(span[1]) < int(span[2])):
            return None
    elif value and all(number >= 0 for number in value) and len(set(value)) == len(value):
        return None
    return "expected all, a list of distinct layer numbers, or a half-open range such as 8..16"

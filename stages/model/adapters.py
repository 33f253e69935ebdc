"""LoRA adapters in one copy of the frozen base, by PEFT: at most one is on; with none on, the model is bitwise the base.

Factors are float32 whatever the base's precision (small updates vanish in bfloat16) and never merged. A starts normal
with deviation 1/rank, B at zero, so that a fresh adapter changes nothing (Hu et al., arXiv:2106.09685, section 4.1).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig
from peft.tuners.lora import LoraModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from stages.core.errors import TrainingError
from stages.core.settings.adapter import ALL_LINEAR
from stages.files.artifacts import FACTOR
from stages.model.layers import stack_name
from stages.model.lora import LoraLinear
from stages.model.passes import Passes

PREFIX = "base_model.model."
"""What PEFT's files put before the base's own module names."""
SHORT = {
    "query": ("q_proj", "query", "q"),
    "key": ("k_proj", "key", "k"),
    "value": ("v_proj", "value", "v"),
    "output": ("o_proj", "out_proj", "dense"),
}
"""Short names of targets, and what checkpoints call them; the first that the model has is meant."""


class Plan(NamedTuple):
    """Which modules get an adapter, and of what shape."""

    rank: int
    alpha: float
    targets: list[str]
    """Module names within a layer, resolved, sorted."""
    layers: list[int]
    """Layer numbers, resolved, ascending."""
    modules: list[str]
    """Full names of the modules."""


def plan(model: PreTrainedModel, section: str, rank: int, alpha: float, targets: str | Sequence[str], layers: str | Sequence[int]) -> Plan:
    """Resolves targets and layers against the model; raises TrainingError with the names that do not match and those it has."""
    linear = _linear_modules(model)
    depth = max((number for number, _ in linear.values()), default=-1) + 1
    chosen = _resolve_layers(section, layers, depth)
    available = sorted({inner for _, inner in linear.values()})
    if targets == ALL_LINEAR:
        resolved = available
    else:
        wanted = [targets] if isinstance(targets, str) else list(targets)
        unmatched = [target for target in wanted if not _matching(target, available, linear)]
        if unmatched:
            raise TrainingError(
                f"{section}.targets: the model has no linear module {', '.join(unmatched)} in its layers; "
                f"it has {', '.join(available)} (or {ALL_LINEAR})"
            )
        resolved = sorted({inner for target in wanted for inner in _matching(target, available, linear)})
    modules = [name for name, (number, inner) in linear.items() if inner in resolved and number in chosen]
    if not modules:
        raise TrainingError(f"{section}.layers: layers {chosen} hold none of {', '.join(resolved)}")
    return Plan(rank, alpha, [_shortest(inner, available) for inner in resolved], chosen, modules)


class Adapters:
    """The adapters that live in one model. Switching moves no weight; a module without the adapter that is on is the base's."""

    def __init__(self, passes: Passes) -> None:
        """`passes` are over the model that the adapters are put into."""
        self.passes = passes
        self.model = passes.model
        self._tuner: LoraModel | None = None
        self._layers: list[BaseTunerLayer] = []
        self._factors: dict[str, dict[str, nn.Parameter]] = {}
        self._trained: set[str] = set()

    def add_fresh(self, name: str, plan: Plan, seed: int) -> dict[str, nn.Parameter]:
        """Adds an adapter at its start and returns its trainable factors by their file names, in the model's order."""
        parameters = self._add(name, plan)
        self._trained.add(name)
        self._require_gradients()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for file_name, parameter in parameters.items():
                if ".lora_A." in file_name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) / plan.rank)
                else:
                    parameter.zero_()
        return parameters

    def add_trained(self, name: str, rank: int, alpha: float, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        """Adds an adapter with the factors of an artifact; raises TrainingError where they do not fit the model."""
        found = {factor["module"] for factor in map(FACTOR.fullmatch, tensors) if factor}
        linear = _linear_modules(self.model)
        foreign = sorted(found - set(linear))
        if foreign:
            raise TrainingError(f"adapter {name}: the model has no linear module {', '.join(foreign[:3])} in its layers")
        self._add(name, Plan(rank, alpha, [], [], sorted(found)))
        self._require_gradients()
        self.copy_into(name, tensors)

    def copy_into(self, name: str, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        """Gives an adapter the factors of an artifact; raises TrainingError where they do not fit."""
        with torch.no_grad():
            for file_name, parameter in self._factors[name].items():
                value = torch.from_numpy(tensors[file_name])
                if value.shape != parameter.shape:
                    raise TrainingError(
                        f"adapter {name}: tensor {file_name} has shape {list(value.shape)}, the model needs {list(parameter.shape)}"
                    )
                parameter.copy_(value)

    def factors(self, name: str) -> dict[str, nn.Parameter]:
        """The factors of an adapter by their file names, in the model's order."""
        return self._factors[name]

    def use(self, name: str | None) -> None:
        """Turns on one adapter, or none: with None the model is the frozen base."""
        for layer in self._layers:
            if isinstance(layer, LoraLinear):
                layer.on = name
            elif name is None:
                layer.enable_adapters(False)
            else:
                layer.set_adapter(name)
                layer.enable_adapters(True)

    def take_out(self) -> None:
        """Leaves the model without any adapter, as it was before; these adapters are of no further use."""
        if self._tuner is not None:
            self._tuner.unload()
            self._tuner, self._layers, self._factors = None, [], {}

    @contextmanager
    def using(self, name: str | None, then: str | None) -> Iterator[None]:
        """Turns on one adapter, or none, for a block, and `then` after it."""
        self.use(name)
        try:
            yield
        finally:
            self.use(then)

    def _add(self, name: str, plan: Plan) -> dict[str, nn.Parameter]:
        transposed = any(isinstance(self.model.get_submodule(module), Conv1D) for module in plan.modules)
        config = LoraConfig(r=plan.rank, lora_alpha=plan.alpha, target_modules=plan.modules, lora_dropout=0.0, fan_in_fan_out=transposed)
        config._register_custom_module({nn.Linear: LoraLinear})
        if self._tuner is None:
            self._tuner = LoraModel(self.model, config, name)
        else:
            self._tuner.peft_config[name] = config
            self._tuner.inject_adapter(self.model, name)
        self.model.eval()  # PEFT leaves what it adds in training mode
        self._layers = [module for module in self.model.modules() if isinstance(module, BaseTunerLayer)]
        self.use(name)
        parameters: dict[str, nn.Parameter] = {}
        for full_name, parameter in self.model.named_parameters():
            if f".lora_A.{name}." in full_name or f".lora_B.{name}." in full_name:
                parameter.data = parameter.data.float()
                parameters[PREFIX + full_name.replace(f".{name}.weight", ".weight")] = parameter
        for module in self._layers:
            if isinstance(module, LoraLinear):
                module.note(name)
        self.passes.renew()
        self._factors[name] = parameters
        return parameters

    def _require_gradients(self) -> None:
        """Of the factors that were fresh here, and of no others; PEFT leaves it to those that were added last."""
        for name, factors in self._factors.items():
            for factor in factors.values():
                factor.requires_grad_(name in self._trained)


def to_numpy(parameters: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    """Copies of the tensors for a file."""
    return {name: parameter.detach().cpu().numpy().copy() for name, parameter in parameters.items()}


def _linear_modules(model: PreTrainedModel) -> dict[str, tuple[int, str]]:
    """Linear modules of the decoder layers: full name -> (layer number, name within the layer)."""
    inside = re.compile(re.escape(stack_name(model)) + r"\.(?P<number>\d+)\.(?P<inner>.+)")
    found: dict[str, tuple[int, str]] = {}
    for name, module in model.named_modules():
        place = inside.fullmatch(name.removesuffix(".base_layer"))
        if place and "lora_" not in name and isinstance(module, nn.Linear | Conv1D):
            found[name.removesuffix(".base_layer")] = (int(place["number"]), place["inner"])
    return found


def _matching(target: str, available: Sequence[str], linear: Mapping[str, tuple[int, str]]) -> list[str]:
    if target in linear:
        return [linear[target][1]]
    for name in SHORT.get(target, (target,)):
        matches = [inner for inner in available if inner == name or inner.endswith("." + name)]
        if matches:
            return matches
    return [inner for inner in available if inner == target or inner.endswith("." + target)]


def _shortest(inner: str, available: Sequence[str]) -> str:
    """The last part of a module's name where it says which one is meant, else the whole name within the layer."""
    last = inner.rsplit(".", 1)[-1]
    return last if sum(other.rsplit(".", 1)[-1] == last for other in available) == 1 else inner


def _resolve_layers(section: str, layers: str | Sequence[int], depth: int) -> list[int]:
    if layers == "all":
        return list(range(depth))
    if isinstance(layers, str):
        first, end = (int(number) for number in layers.split(".."))
        last = end - 1
    else:
        last = max(layers)
    if last >= depth:
        raise TrainingError(f"{section}.layers: layer {last} is not there; the model has {depth} layers, 0 to {depth - 1}")
    return list(range(first, end)) if isinstance(layers, str) else sorted(layers)

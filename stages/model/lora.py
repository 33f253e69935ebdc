"""A low-rank update beside a frozen linear layer, unmerged (Hu et al., arXiv:2106.09685)."""

from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.nn.functional import linear


class LowRank(NamedTuple):
    """The factors of one adapter in one layer."""

    first: nn.Parameter
    """A, [rank, in]."""
    second: nn.Parameter
    """B, [out, rank]."""
    scale: float

    def added(self, out: Tensor, states: Tensor) -> Tensor:
        """What the base made of the states [..., in], with scale * B A states added to it, [..., out]."""
        if out.dtype != self.first.dtype:
            return (out + linear(linear(states.to(self.first.dtype), self.first), self.second) * self.scale).to(out.dtype)
        inner = linear(states, self.first)
        if out.dim() == 2:
            return torch.addmm(out, inner, self.second.T, alpha=self.scale)
        return torch.addmm(out.flatten(0, -2), inner.flatten(0, -2), self.second.T, alpha=self.scale).view(out.shape)


class LoraLinear(Linear):  # type: ignore[misc]
    """PEFT's layer, of one adapter at a time, switched by a name and computed in two calls less.

    In a decode step the calls cost as much as the small products.
    """

    on: str | None = None
    """The adapter that is on; a layer that does not have it is the base's."""

    def note(self, name: str) -> None:
        """Takes down an adapter's factors, if the layer has that adapter."""
        if name in self.lora_A:
            found = LowRank(self.lora_A[name].weight, self.lora_B[name].weight, float(self.scaling[name]))
            self.__dict__.setdefault("noted", {})[name] = found

    def active(self) -> LowRank | None:
        """The factors of the adapter that is on; None where none is, or the layer does not have it."""
        return self.noted.get(self.on)

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """What PEFT's layer computes."""
        out: Tensor = self.base_layer(x)
        update = self.active()
        return out if update is None else update.added(out, x)

"""Products of weights with few rows of states, as decoding has them, the faster way round.

For few rows BLAS is faster at weights times columns than at rows times weights; for many there is no difference.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.model.attention import current
from stages.model.decoding import Decoding
from stages.model.layers import stack

BLOCK = 192
"""Rows of the weights in one of many equal products."""
LARGE = 2**16
"""Numbers of a weight from which on turning a product round pays."""


def tall_product(weight: Tensor, states: Tensor) -> Tensor:
    """weight [V, H] times states [R, H], as [V, R]; of a vocabulary's weights block by block."""
    count = len(weight) // BLOCK
    if not is_large(weight) or count < 2:
        return weight @ states.T
    blocks = weight[: count * BLOCK].view(count, BLOCK, -1)
    found = torch.bmm(blocks, states.T.expand(count, -1, -1)).view(count * BLOCK, -1)
    rest = weight[count * BLOCK :]
    return torch.cat([found, rest @ states.T]) if len(rest) else found


def turn_round(model: PreTrainedModel) -> None:
    """Lets the large linear layers of a frozen model compute so while it decodes, for good; elsewhere they stay as they are."""
    for module in stack(model).modules():
        if isinstance(module, nn.Linear) and is_large(module.weight):
            module.forward = functools.partial(_forward, module, module.forward)  # type: ignore[method-assign]


def is_large(weight: Tensor) -> bool:
    """Whether turning its product round pays."""
    return weight.numel() >= LARGE


def few_rows(weight: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
    """The linear layer's output [R, out] of few rows of states [R, in]."""
    found = (weight @ states.T).T
    return found.contiguous() if bias is None else found + bias


def _forward(module: nn.Linear, forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    if not isinstance(current(), Decoding):
        return forward(states)
    return few_rows(module.weight, module.bias, states.flatten(0, -2)).view(*states.shape[:-1], -1)

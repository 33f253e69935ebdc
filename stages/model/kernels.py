"""Attention over one block of keys, with the logarithm of its normalizer, so that blocks can be merged into one softmax.

The softmax over several blocks is the sum of the blocks' own outputs, weighted by exp(lse_block - lse_all); and the gradient
through one block needs the output and the lse of all of them, and nothing of the other blocks (Liu et al., arXiv:2310.01889;
Dao et al., arXiv:2205.14135). torch's flash kernel for CPUs gives and takes exactly these; elsewhere, and where scores are
capped, plain products do the same.

B rows, A heads, L queries, S keys, D width of a head. Softmax and lse are float32 whatever the weights' precision.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Block(NamedTuple):
    """Queries [B, A, L, D] and the keys and values [B, A, S, D] that they see; S is at least 1."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    """Added to the scores: 0 where a query sees a key and minus infinity where not, [L, S] in the queries' precision; None where it sees
    all, or all up to its own place."""
    causal: bool
    """Whether query i sees keys 0 to i alone; L equals S then, and `mask` is None."""
    scale: float
    softcap: float | None
    """Scores are capped to cap * tanh(score / cap) (Gemma 2, arXiv:2408.00118)."""


class Attended(NamedTuple):
    """What the queries read."""

    out: Tensor
    """[B, A, L, Dv], in the values' precision."""
    lse: Tensor
    """Logarithm of the sum of exp(score), float32 [B, A, L]; minus infinity where no key is seen."""


class Gradients(NamedTuple):
    """Of a block's queries, keys and values, in their shapes."""

    query: Tensor
    key: Tensor
    value: Tensor


def attend(block: Block) -> Attended:
    """Attention over the block's keys alone."""
    if not _takes_flash(block):
        scores = _scores(block)
        lse = scores.logsumexp(-1)
        return Attended((_weights(scores, lse) @ block.value.float()).to(block.value.dtype), lse)
    query, key, value = map(_even, block[:3])
    out, lse = _FORWARD(query, key, value, 0.0, block.causal, attn_mask=block.mask, scale=block.scale)
    if block.mask is not None:
        lse = lse.masked_fill(block.mask.amax(-1).isneginf(), -torch.inf)
    return Attended(out, lse)


def attend_backward(block: Block, out: Tensor, lse: Tensor, gradient: Tensor) -> Gradients:
    """Gradients through the block, of a softmax over it and others: out [B, A, L, Dv] and lse [B, A, L] are those of all."""
    if _takes_flash(block):
        inputs = map(_even, (gradient, *block[:3], out))
        parts = _BACKWARD(*inputs, lse, 0.0, block.causal, attn_mask=block.mask, scale=block.scale)
        return Gradients(*parts)
    scores = _scores(block)
    weights = _weights(scores, lse)
    upstream = gradient.float()
    through = upstream @ block.value.float().transpose(-1, -2)
    ahead = weights * (through - (upstream * out.float()).sum(-1, keepdim=True))
    if block.softcap is not None:
        ahead = ahead * (1 - (scores / block.softcap).square()).masked_fill(scores.isinf(), 0.0)
    ahead = ahead * block.scale
    query = ahead @ block.key.float()
    key = ahead.transpose(-1, -2) @ block.query.float()
    value = weights.transpose(-1, -2) @ upstream
    return Gradients(query.to(block.query.dtype), key.to(block.key.dtype), value.to(block.value.dtype))


def merge(first: Attended, second: Attended) -> Attended:
    """One softmax over the keys of both, [B, A, L] queries each."""
    lse = torch.logaddexp(first.lse, second.lse)
    weights = [(part.lse - lse).exp().unsqueeze(-1) for part in (first, second)]
    return Attended((first.out * weights[0] + second.out * weights[1]).to(first.out.dtype), lse)


def _takes_flash(block: Block) -> bool:
    query, _, value = block.query, block.key, block.value
    return query.device.type == "cpu" and block.softcap is None and query.shape[-1] == value.shape[-1]


def _even(numbers: Tensor) -> Tensor:
    """The same with each head's numbers beside each other: the flash kernel takes that for granted, and would read elsewhere."""
    return numbers if numbers.stride(-1) == 1 else numbers.contiguous()


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask of which keys are seen, bool [L, S]."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, -torch.inf)


def _scores(block: Block) -> Tensor:
    scores = (block.query.float() @ block.key.float().transpose(-1, -2)) * block.scale
    if block.softcap is not None:
        scores = torch.tanh(scores / block.softcap) * block.softcap
    if block.causal:
        return scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(), -torch.inf)
    return scores if block.mask is None else scores + block.mask.float()


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    """exp(score - lse), 0 for all keys where none is seen."""
    return (scores - lse.unsqueeze(-1).clamp(min=torch.finfo(torch.float32).min)).exp()

"""The floor of a GRPO step: its products alone, with the model's own weights, and nothing between them.

Linear layers on the rows that are live, vocabulary rows where a token is predicted, and attention over the query-key pairs that
are seen: prefill, decode, reference, forward, and the backward pass with respect to inputs. Norms, rotations, activations,
softmax, adapters, autograd and Python are left out, so no trainer can be faster with these weights and these products.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from stages.model.vocabulary import tall_product


class Shape(NamedTuple):
    """One group: tokens of the prompt, completions, tokens of each."""

    prompt: int
    group: int
    new_tokens: int


class Floor(NamedTuple):
    """Seconds of the products."""

    prefill: float
    decode: float
    reference: float
    forward: float
    backward: float


def measure(model: PreTrainedModel, shape: Shape) -> Floor:
    """Times the products of one optimizer step on one group."""
    prompt, group, new = shape
    row = prompt + group * new
    predicted = 1 + group * (new - 1)
    found = Floor(
        prefill=_seconds(lambda: (_linears(model, prompt), _prompt(model, prompt, 2), _vocabulary(model, 1))),
        decode=sum(_seconds(lambda place=place: _step(model, prompt, group, place)) for place in range(1, new)),
        reference=_seconds(lambda: (_linears(model, row), _attention(model, shape, 2), _vocabulary(model, predicted))),
        forward=_seconds(lambda: (_linears(model, row), _attention(model, shape, 2), _vocabulary(model, predicted))),
        backward=_seconds(lambda: (_linears_back(model, row), _attention(model, shape, 4), _vocabulary_back(model, predicted))),
    )
    _made.clear()
    return found


def _seconds(work: Callable[[], object]) -> float:
    with torch.no_grad():
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


def _weights(model: PreTrainedModel) -> list[Tensor]:
    head = model.get_output_embeddings()
    return [module.weight for module in model.modules() if isinstance(module, nn.Linear) and module is not head]


def _linears(model: PreTrainedModel, rows: int) -> None:
    for weight in _weights(model):
        linear(_numbers(rows, weight.shape[1]), weight)


def _linears_back(model: PreTrainedModel, rows: int) -> None:
    for weight in _weights(model):
        torch.mm(_numbers(rows, weight.shape[0]), weight)


def _vocabulary(model: PreTrainedModel, rows: int) -> None:
    weight = model.get_output_embeddings().weight
    for start in range(0, rows, 64):  # all at once would be another 75 MB to write
        tall_product(weight, _numbers(min(64, rows - start), weight.shape[1]))


def _vocabulary_back(model: PreTrainedModel, rows: int) -> None:
    weight = model.get_output_embeddings().weight
    for start in range(0, rows, 64):
        torch.mm(weight.T, _numbers(min(64, rows - start), weight.shape[0]).T)


def _prompt(model: PreTrainedModel, prompt: int, products: int) -> None:
    heads, _, width = _heads(model)
    _pairs(model, products, heads, prompt, (prompt + 1) // 2, width)


def _attention(model: PreTrainedModel, shape: Shape, products: int) -> None:
    heads, groups, width = _heads(model)
    _prompt(model, shape.prompt, products)
    _pairs(model, products, groups, heads // groups * shape.group * shape.new_tokens, shape.prompt, width)
    _pairs(model, products, heads * shape.group, shape.new_tokens, (shape.new_tokens + 1) // 2, width)


def _step(model: PreTrainedModel, prompt: int, group: int, place: int) -> None:
    heads, groups, width = _heads(model)
    _linears(model, group)
    _pairs(model, 2, groups, heads // groups * group, prompt, width)
    _pairs(model, 2, groups * group, heads // groups, place, width)
    _vocabulary(model, group)


def _heads(model: PreTrainedModel) -> tuple[int, int, int]:
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_attention_heads, config.num_key_value_heads, width


def _pairs(model: PreTrainedModel, products: int, batch: int, queries: int, keys: int, width: int) -> None:
    """In every layer, half of the products as scores are made and half as values are mixed."""
    query, key, scores = _numbers(batch, queries, width), _numbers(batch, keys, width), _numbers(batch, queries, keys)
    for _ in range(model.config.num_hidden_layers):
        for _ in range(products // 2):
            torch.bmm(query, key.transpose(1, 2))
            torch.bmm(scores, key)


_made: dict[tuple[int, ...], Tensor] = {}


def _numbers(*shape: int) -> Tensor:
    """The same tensor for the same shape, so that making it is not timed after the first pass."""
    if shape not in _made:
        _made[shape] = torch.randn(shape)
    return _made[shape]

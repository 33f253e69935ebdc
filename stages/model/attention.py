"""The attention of packed rows, as transformers' models find it.

transformers' attention interface hands over queries, keys and values of one row of tokens, [1, A, N, D]. What sees what is not in a
mask but in the layout that is in force while the model is called. No cache of transformers' is used: where earlier tokens are
seen, the layout keeps their keys and values.

A heads, K heads of keys and values, N tokens of the row, D width of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig

IMPLEMENTATION = "leash_branches"
"""The name under which transformers' models find this attention."""


class Rule(NamedTuple):
    """How one layer scores, as its model says."""

    scale: float
    window: int | None
    """A query sees this many positions, its own included; None for all."""
    softcap: float | None
    sinks: Tensor | None
    """A score per head [A] that takes its share of every softmax and gives no value (gpt-oss)."""


class Layout(Protocol):
    """What sees what in the row that goes through the model."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Outputs [N, A, D] of queries [A, N, D] over keys and values [K, N, D] and what the layout keeps of earlier rows."""


_in_force: ContextVar[Layout | None] = ContextVar("layout", default=None)


@contextmanager
def laid_out(config: PreTrainedConfig, layout: Layout | None) -> Iterator[None]:
    """Puts a layout in force for a block in which the model of this configuration is called; with None its own attention stays."""
    if layout is None:
        yield
        return
    token = _in_force.set(layout)
    own = config._attn_implementation
    config._attn_implementation = IMPLEMENTATION
    try:
        yield
    finally:
        config._attn_implementation = own
        _in_force.reset(token)


def current() -> Layout | None:
    """The layout in force; None in passes that need none."""
    return _in_force.get()


def _interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - none is made for an implementation without a mask function
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: Any = module.layer_idx
    layout = current()
    assert layout is not None, "packed passes alone call a model with this attention"
    out = layout.attend(layer, query[0], key[0], value[0], Rule(scale, sliding_window, softcap, s_aux))
    return out[None], None


AttentionInterface.register(IMPLEMENTATION, _interface)

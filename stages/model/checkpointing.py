"""Activation checkpointing: a layer keeps its input alone for the gradient, and runs again in the backward pass, to the same numbers."""

import functools
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from stages.model import attention
from stages.model.layers import stack


def turn_on(model: PreTrainedModel) -> None:
    """Makes every decoder layer of the model do so wherever there is a gradient, for good."""
    for layer in stack(model):
        layer.forward = functools.partial(_forward, model.config, layer.forward)


def _forward(config: PreTrainedConfig, forward: Any, *arguments: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    return checkpoint(_again, config, attention.current(), forward, arguments, options, use_reentrant=False, preserve_rng_state=False)


def _again(
    config: PreTrainedConfig, layout: attention.Layout | None, forward: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Runs the layer in the layout of the pass, which the backward pass has left."""
    with attention.laid_out(config, layout):
        return forward(*arguments, **options)

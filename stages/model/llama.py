"""The decoder layers of models that are built as Llama (Touvron et al., arXiv:2302.13971), written out.

The same products as transformers' modules make, in two thirds of the operations, with gradients that keep less. In a decode step, between
weights that pass through all caches, every small operation costs 10 to 20 microseconds, and so is every call of a module.

N tokens of the row, H their hidden width, A heads, K heads of keys and values, D width of a head.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from stages.model import attention
from stages.model.attention import Layout, Rule
from stages.model.blocks import Prefill
from stages.model.lora import LoraLinear

KINDS = {"llama", "mistral", "qwen2", "qwen3", "smollm3"}
"""Model types of transformers' own that compute just this. Others look alike, and scale or clip where a check of a few tokens is blind."""
OWN = "transformers.models."
"""Where transformers' own classes are; a checkpoint's remote code is elsewhere."""
ROTATIONS = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotation whose angles depend on the position alone, and not on how long the sequence is."""
PARTS = {
    "": {"embed_tokens", "layers", "norm", "rotary_emb"},
    "layers.0": {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"},
    "layers.0.self_attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "layers.0.mlp": {"gate_proj", "up_proj", "down_proj", "act_fn"},
}
"""The modules of a decoder that is built as Llama's, and what each is made of."""
HEAD_NORMS = {"q_norm", "k_norm"}
"""What Qwen3 adds to its attention (arXiv:2505.09388)."""


class Projection(NamedTuple):
    """A linear layer, with the adapter that is on."""

    weight: Tensor
    bias: Tensor | None
    adapted: LoraLinear | None

    def of(self, states: Tensor) -> Tensor:
        """[N, out] of states [N, in]."""
        out = linear(states, self.weight, self.bias)
        update = None if self.adapted is None else self.adapted.active()
        return out if update is None else update.added(out, states)


class Norm(NamedTuple):
    """Root mean square normalization (arXiv:1910.07467)."""

    weight: Tensor
    epsilon: Tensor
    """Added to the mean of squares [1]."""

    def of(self, states: Tensor) -> Tensor:
        """Normalized over the last dimension."""
        if torch.is_grad_enabled() and states.requires_grad:
            return _Normalized.apply(states, *self)
        return _normalized(states, *self)[0]


class Layer(NamedTuple):
    """A decoder layer."""

    before_attention: Norm
    query: Projection
    key: Projection
    value: Projection
    query_norm: Norm | None
    key_norm: Norm | None
    rotates: bool
    """Whether queries and keys are turned by their positions; SmolLM3 leaves it out in some layers."""
    rule: Rule
    output: Projection
    before_mlp: Norm
    gate: Projection
    activation: Callable[[Tensor], Tensor]
    up: Projection
    down: Projection


class LlamaStack:
    """All layers of one model."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> "LlamaStack | None":
        """None where the model is built otherwise, or a layer's call was replaced; that the numbers agree is for the check at load."""
        backbone: nn.Module = model.base_model
        if not type(backbone).__module__.startswith(OWN) or model.config.model_type not in KINDS:
            return None
        modules = dict(backbone.named_modules())
        for name, parts in PARTS.items():
            if name not in modules or {child for child, _ in modules[name].named_children()} - HEAD_NORMS != parts:
                return None
        if getattr(modules["rotary_emb"], "rope_type", None) not in ROTATIONS or not _is_plain(backbone):
            return None
        return cls(model)

    def __init__(self, model: PreTrainedModel) -> None:
        self._backbone: Any = model.base_model
        self._width: int = self._backbone.layers[0].self_attn.head_dim
        self._embeddings: Tensor = self._backbone.embed_tokens.weight
        self._table = self._embeddings.new_empty(2, 0, 1, self._width)
        probe = Prefill([2], model.device)
        with attention.laid_out(model.config, probe), torch.no_grad():
            ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
            self._backbone(input_ids=ids, position_ids=probe.positions[None], use_cache=False)
        self._rules = probe.rules
        self.renew()

    def renew(self) -> None:
        """To be called when adapters were put into the model."""
        self._layers = [self._layer(number, layer) for number, layer in enumerate(self._backbone.layers)]
        self._last = _norm(self._backbone.norm)

    def run(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Hidden states after the final norm [N, H] of a row of tokens at their positions, int64 [N] each."""
        hidden = embedding(tokens, self._embeddings)
        cosine, sine = self._angles(positions, tokens.device)
        shape = (hidden.shape[0], -1, self._width)
        for number, layer in enumerate(self._layers):
            normed = layer.before_attention.of(hidden)
            query = layer.query.of(normed).view(shape)
            key = layer.key.of(normed).view(shape)
            value = layer.value.of(normed).view(shape)
            if layer.query_norm and layer.key_norm:
                query, key = layer.query_norm.of(query), layer.key_norm.of(key)
            heads = query.shape[1]
            if layer.rotates:
                turned = _turned(torch.cat([query, key], 1), cosine, sine)
                query, key = turned[:, :heads], turned[:, heads:]
            read = layout.attend(number, query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), layer.rule)
            hidden = hidden + layer.output.of(read.flatten(1))
            normed = layer.before_mlp.of(hidden)
            hidden = hidden + layer.down.of(layer.activation(layer.gate.of(normed)) * layer.up.of(normed))
        return self._last.of(hidden)

    def _angles(self, positions: Tensor, device: torch.device) -> Tensor:
        """Cosines of positions [N], and sines with the sign of their half: [2, N, 1, D]. Kept of all up to the highest so far."""
        if (most := int(positions.max())) >= self._table.shape[1]:
            cosine, sine = self._backbone.rotary_emb(self._embeddings, torch.arange(2 * most + 1, device=device)[None])
            half = self._width // 2
            self._table = torch.stack([cosine[0], torch.cat([-sine[0, :, :half], sine[0, :, half:]], -1)])[:, :, None]
        return self._table.index_select(1, positions.to(device))

    def _layer(self, number: int, layer: Any) -> Layer:
        attends, mlp = layer.self_attn, layer.mlp
        return Layer(
            before_attention=_norm(layer.input_layernorm),
            query=_projection(attends.q_proj),
            key=_projection(attends.k_proj),
            value=_projection(attends.v_proj),
            query_norm=_norm(attends.q_norm) if hasattr(attends, "q_norm") else None,
            key_norm=_norm(attends.k_norm) if hasattr(attends, "k_norm") else None,
            rotates=bool(getattr(attends, "use_rope", True)),
            rule=self._rules[number],
            output=_projection(attends.o_proj),
            before_mlp=_norm(layer.post_attention_layernorm),
            gate=_projection(mlp.gate_proj),
            activation=silu if isinstance(mlp.act_fn, nn.SiLU | SiLUActivation) else mlp.act_fn,
            up=_projection(mlp.up_proj),
            down=_projection(mlp.down_proj),
        )


def _is_plain(backbone: nn.Module) -> bool:
    """Whether all is frozen, and no module computes otherwise than its kind or is listened to: both would be passed by."""
    frozen = not any(parameter.requires_grad for parameter in backbone.parameters())
    called = any("forward" in vars(one) or one._forward_hooks or one._forward_pre_hooks for one in backbone.modules())
    projections = [module for name, module in backbone.named_modules() if name.endswith("_proj")]
    norms = [module for name, module in backbone.named_modules() if name.endswith("norm")]
    own = all(type(one).__module__.startswith(OWN) and hasattr(one, "variance_epsilon") for one in norms)
    return frozen and not called and own and all(type(one) is nn.Linear for one in projections)


def _projection(module: Any) -> Projection:
    plain, adapted = (module.base_layer, module) if isinstance(module, LoraLinear) else (module, None)
    assert type(plain) is nn.Linear, f"{type(module).__name__} would be passed by"
    return Projection(plain.weight, plain.bias, adapted)


def _norm(module: Any) -> Norm:
    return Norm(module.weight, module.weight.new_full((1,), module.variance_epsilon, dtype=torch.float32))


def _normalized(states: Tensor, weight: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The normalized states, those before the weight, and their factor; float32 within, as transformers has it."""
    wide = states if states.dtype == torch.float32 else states.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    factor = torch.addcmul(epsilon, norm, norm, value=1 / wide.shape[-1]).rsqrt_()
    unit = wide * factor
    return (unit if wide is states else unit.to(states.dtype)) * weight, unit, factor


class _Normalized(torch.autograd.Function):
    """With the gradient with respect to the states; the weight is frozen."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, epsilon: Tensor) -> Tensor:
        out, unit, factor = _normalized(states, weight, epsilon)
        ctx.save_for_backward(unit, factor, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        unit, factor, weight = ctx.saved_tensors
        upstream = gradients[0] * weight
        ahead = upstream.float()
        shared = (ahead * unit).mean(-1, keepdim=True)
        return torch.addcmul(ahead, unit, shared, value=-1).mul_(factor).to(upstream.dtype), None, None


def _swapped(heads: Tensor) -> Tensor:
    half = heads.shape[-1] // 2
    return torch.cat([heads.narrow(-1, half, half), heads.narrow(-1, 0, half)], -1)


def _turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Heads [N, A, D] turned by their positions (Su et al., arXiv:2104.09864)."""
    if torch.is_grad_enabled() and heads.requires_grad:
        return _Turned.apply(heads, cosine, sine)
    return torch.addcmul(heads * cosine, _swapped(heads), sine)


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return torch.addcmul(heads * cosine, _swapped(heads), sine)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        cosine, sine = ctx.saved_tensors
        upstream = gradients[0]
        return _swapped(upstream * sine).addcmul_(upstream, cosine), None, None

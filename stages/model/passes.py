"""Which passes a model gets: packed rows where a check at load finds the same numbers as in padded ones, else the padded ones."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.core.errors import BaseError
from stages.core.progress import say
from stages.core.settings.runtime import Runtime
from stages.model import checkpointing
from stages.model.groups import Completed, TokenScores
from stages.model.packed import PackedPasses
from stages.model.padded import PaddedPasses, accepts
from stages.model.sampling import Decoder

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.03}
"""How far packed and padded numbers may be apart, as a share of the numbers' own spread, by the weights' precision.

A wrong position, mask or norm puts them as far apart as they are spread; rounding stays far below these.
"""
LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers, as configurations name them, whose tokens see all or a window of what is before them, and nothing else."""


class Passes(Protocol):
    """Forward passes over groups, with the adapter that is on."""

    model: PreTrainedModel

    def renew(self) -> None:
        """To be called when adapters were put into the model."""

    def fits(self, groups: Sequence[Completed]) -> bool:
        """Whether the groups are few enough for one pass."""

    def token_scores(self, groups: Sequence[Completed], temperature: float) -> list[TokenScores]:
        """Scores the tokens of several groups in one pass; one entry per group. Carries the gradient."""

    def last_hidden(self, groups: Sequence[Completed]) -> Tensor:
        """The hidden state of every completion's last token after the final norm, float32 [sum of G, H]; carries the gradient."""

    def decoder(self, prompts: Sequence[Sequence[int]], group: int, limit: int) -> Decoder:
        """Prefills each of P prompts once, for `group` completions each of at most `limit` tokens."""


def choose(model: PreTrainedModel, runtime: Runtime) -> Passes:
    """The passes of a frozen model without adapters, and says which; their numbers differ by rounding alone."""
    if runtime.activation_checkpointing:
        checkpointing.turn_on(model)
    padded = PaddedPasses(model)
    with torch.random.fork_rng(devices=[]):
        reason = unsuitable(model)
        if reason is None:
            packed, reason = _checked(model, runtime.logits_chunk, padded, written_out=not runtime.shard)
            left = f"those of this {model.config.model_type} are not written out"
            for key in ("activation_checkpointing", "shard"):
                left = f"runtime.{key} is on" if getattr(runtime, key) else left
            if reason and packed and packed.stack:
                left = f"written out, {reason}"
                packed, reason = _checked(model, runtime.logits_chunk, padded, written_out=False)
            if packed and reason is None:
                layers = "written out" if packed.stack else f"by transformers' modules, since {left}"
                say(f"passes: packed rows, each group's prompt computed once, layers {layers}")
                return packed
    say(f"passes: padded rows, one per completion, since {reason}")
    return padded


def _checked(model: PreTrainedModel, chunk: int, padded: PaddedPasses, written_out: bool) -> tuple[PackedPasses | None, str | None]:
    """Packed passes, None where they cannot be made, and what is wrong with their numbers, in short rows and as long ones are computed."""
    packed = None
    try:
        expected = _probe(padded)
        packed = PackedPasses(model, chunk, written_out)
        as_long = PackedPasses(model, chunk, written_out, short_tokens=0, copied_tokens=0)
        reasons = (_difference(_probe(one), expected, model.dtype) for one in (packed, as_long))
        return packed, next((reason for reason in reasons if reason), None)
    except (BaseError, RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        return packed, f"packed ones fail ({type(error).__name__}: {' '.join(str(error).split())[:120]})"


def unsuitable(model: PreTrainedModel) -> str | None:
    """Why packed rows are not tried on a model; None where they are."""
    kind = model.config.model_type
    text = model.config.get_text_config(decoder=True)
    if not model._can_set_attn_implementation():
        return f"{kind} has an attention of its own"
    if not accepts(model.base_model, "position_ids"):
        return f"{kind} takes no positions"
    if foreign := sorted(set(getattr(text, "layer_types", None) or ()) - LAYERS):
        return f"{kind} has layers of {', '.join(foreign)}"
    if getattr(text, "is_causal", True) is False:
        return f"{kind} is not causal"
    return None


@torch.no_grad()
def _probe(passes: Passes) -> list[Tensor]:
    """What the passes say of two small groups: log-probabilities, last states, and logits while two of them are decoded."""
    vocabulary = passes.model.config.get_text_config(decoder=True).vocab_size
    tokens = [(7919 * place + 11) % vocabulary for place in range(18)]
    groups = [Completed(tokens[:5], [tokens[5:9], tokens[9:10], tokens[10:12]]), Completed(tokens[12:13], [tokens[13:16], tokens[16:18]])]
    scores = passes.token_scores(groups, 0.7)
    decoder = passes.decoder([group.prompt for group in groups], 2, 3)
    logits = [decoder.logits.clone()]
    for place in range(2):
        decoder.step(torch.tensor(tokens[place : place + 4], device=decoder.logits.device))
        logits.append(decoder.logits.clone())
    return [torch.cat([one.log_probs for one in scores]), passes.last_hidden(groups), torch.cat(logits)]


def _difference(found: Sequence[Tensor], expected: Sequence[Tensor], precision: torch.dtype) -> str | None:
    """What is wrong with packed numbers beside padded ones; None where they are the same but for rounding."""
    names = ("log-probabilities", "hidden states", "logits while sampling")
    for name, ours, theirs in zip(names, found, expected, strict=True):
        apart = float((ours.float() - theirs.float()).abs().mean() / theirs.float().std())
        if not apart <= TOLERANCE.get(precision, TOLERANCE[torch.float32]):
            return f"the {name} of packed ones are {apart:.1e} of their spread away"
    return None

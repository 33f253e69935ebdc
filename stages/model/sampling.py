"""Sampling completions: prompts prefilled once, every draw of every prompt decoded in one batch with a cache.

The sampling parameters are the caller's alone; the checkpoint's generation_config is not read, but for its end tokens.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from stages.core.errors import BaseError, TrainingError
from stages.model.passes import PAD, accepts

ROWS = 64
"""Completions that are decoded in one batch, at most, unless one prompt has more."""


class NotFiniteError(TrainingError):
    """The model's distribution holds numbers that are not finite, so no token can be drawn: lower the learning rate."""

    def __init__(self, prompt: int, draw: int, position: int) -> None:
        self.prompt, self.draw, self.position = prompt, draw, position
        super().__init__(f"prompt {prompt}, draw {draw}, position {position}: the model's distribution is not finite")


class Completion(NamedTuple):
    """One sampled completion."""

    ids: list[int]
    """The sampled tokens, the end token included where one was drawn; at least one."""
    ended: bool
    """Whether an end token was drawn; otherwise it was truncated at max_new_tokens."""

    @property
    def length(self) -> int:
        """Tokens without the end token."""
        return len(self.ids) - self.ended

    @property
    def empty(self) -> bool:
        """Whether it is a lone end token."""
        return self.length == 0

    @property
    def content(self) -> list[int]:
        """The tokens without the end token."""
        return self.ids[: self.length]


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    uniforms: NDArray[np.float64],
    temperature: float,
    top_p: float,
    end_tokens: Sequence[int],
) -> list[list[Completion]]:
    """Completes each of P prompts G times with the adapter that is on; `uniforms` [P, G, T] chooses every token.

    T is max_new_tokens. A temperature of 0 is greedy. Prompts are decoded together up to ROWS completions, which changes no
    draw. Returns P lists of G completions; raises NotFiniteError, and BaseError where the architecture decodes without a
    cache of keys and values.
    """
    _require_cache(model)
    pick = functools.partial(choose, temperature=temperature, top_p=top_p)
    together = max(1, ROWS // uniforms.shape[1])
    found: list[list[Completion]] = []
    for start in range(0, len(prompts), together):
        batch = slice(start, start + together)
        try:
            found += _decode(model, prompts[batch], uniforms[batch], pick, end_tokens)
        except NotFiniteError as error:
            raise NotFiniteError(start + error.prompt, error.draw, error.position) from error
    return found


def _decode(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    uniforms: NDArray[np.float64],
    pick: Callable[[Tensor, Tensor], Tensor],
    end_tokens: Sequence[int],
) -> list[list[Completion]]:
    """Completes all prompts in one batch; `pick` takes logits [R, V] and uniforms [R] to tokens [R]."""
    count, group, limit = uniforms.shape
    device = model.device
    chooser = torch.from_numpy(uniforms.reshape(count * group, limit)).to(device)
    ends = torch.tensor(list(end_tokens), device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    logits, cache, mask = _prefill(model, prompts)
    logits = logits.repeat_interleave(group, 0)
    cache.batch_repeat_interleave(group)
    mask = mask.repeat_interleave(group, 0)
    positions = lengths.repeat_interleave(group)
    live = torch.ones(count * group, dtype=torch.bool, device=device)
    columns: list[Tensor] = []
    for place in range(limit):
        broken = (live & ~torch.isfinite(logits.logsumexp(-1))).nonzero()
        if len(broken):
            raise NotFiniteError(int(broken[0]) // group, int(broken[0]) % group, place)
        token = pick(logits, chooser[:, place])
        columns.append(token)
        live &= ~torch.isin(token, ends)
        if place + 1 == limit or not live.any():
            break
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        logits = _step(model, token[:, None], mask, positions[:, None] + place, cache)
    rows = torch.stack(columns, dim=1).tolist()
    completions = [_cut(row, set(end_tokens)) for row in rows]
    return [completions[start : start + group] for start in range(0, count * group, group)]


def choose(logits: Tensor, uniform: Tensor, temperature: float, top_p: float) -> Tensor:
    """Tokens [R] by inverting the cumulated distribution of logits [R, V] at uniform float64 [R]; argmax at temperature 0.

    The nucleus is the smallest set of most likely tokens whose probability reaches top_p (Holtzman et al.,
    arXiv:1904.09751); the cumulation runs in the vocabulary's order, so that near ties in rank change nothing.
    """
    if temperature == 0:
        return logits.argmax(-1)
    below = logits.float() - logits.max(-1, keepdim=True).values.float()  # so that dividing by next to nothing leaves the likeliest finite
    probabilities = torch.softmax(below / max(temperature, torch.finfo(torch.float32).tiny), dim=-1).double()
    if top_p < 1:
        ranked, order = probabilities.sort(dim=-1, descending=True, stable=True)
        outside = ranked.cumsum(-1) - ranked >= top_p
        probabilities = probabilities.masked_fill(outside.gather(-1, order.argsort(-1)), 0.0)
    cumulated = probabilities.cumsum(-1)
    wanted = uniform[:, None] * cumulated[:, -1:]
    chosen = torch.searchsorted(cumulated, wanted, right=True)[:, 0]
    # rounding can put the wanted mass at the very end: the last token that has any
    last = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(-1)
    return torch.minimum(chosen, last)


def _require_cache(model: PreTrainedModel) -> None:
    """Raises BaseError for recurrent states and for models without a cache: left padding and repeated rows would be wrong there."""
    takes_cache = accepts(model, "cache") or accepts(model, "past_key_values")
    if model._is_stateful or not takes_cache or not model._supports_default_dynamic_cache():
        raise BaseError(
            f"base.model: {model.config.model_type} does not decode with a plain cache of keys and values, so completions cannot be "
            "sampled from it; name a transformer that does"
        )


def _prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, DynamicCache, Tensor]:
    """Logits after each prompt [P, V], the cache, and the mask [P, longest]; rows are padded on the left, positions are their own."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), PAD)
    mask = torch.zeros((len(prompts), longest), dtype=torch.long)
    for number, prompt in enumerate(prompts):
        ids[number, longest - len(prompt) :] = torch.tensor(prompt)
        mask[number, longest - len(prompt) :] = 1
    mask = mask.to(model.device)
    cache = DynamicCache(config=model.config)
    return _step(model, ids.to(model.device), mask, (mask.cumsum(-1) - 1).clamp(min=0), cache), cache, mask


def _step(model: PreTrainedModel, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "use_cache": True}
    inputs["cache" if accepts(model, "cache") else "past_key_values"] = cache  # architectures differ in what they call it
    if accepts(model, "position_ids"):
        inputs["position_ids"] = positions
    if accepts(model, "logits_to_keep"):
        inputs["logits_to_keep"] = 1
    return model(**inputs).logits[:, -1]


def _cut(row: list[int], ends: set[int]) -> Completion:
    for place, token in enumerate(row):
        if token in ends:
            return Completion(row[: place + 1], ended=True)
    return Completion(row, ended=False)

"""Sampling completions: prompts prefilled once, every draw of every prompt decoded in one batch, which finished ones leave.

The sampling parameters are the caller's alone; the checkpoint's generation_config is not read, but for its end tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stages.core.errors import TrainingError

ROWS = 256
"""Completions that are decoded in one batch, at most, unless one prompt has more."""
LIKELY = (64, 1024, 8192)
"""Among how many of the likeliest tokens the nucleus is looked for, one after the other, before all are ranked."""
BLOCK = 256
"""Tokens whose probabilities are summed before they are cumulated."""
LEAVING = 8
"""Finished completions leave the batch when there are as many as one in LEAVING, since leaving copies what stays."""


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


class Decoder(Protocol):
    """Live completions, one row each, in the order of their prompts."""

    logits: Tensor
    """[R, V], of each one's next token."""

    def keep(self, rows: Tensor) -> None:
        """Goes on with these rows alone [R]."""

    def step(self, tokens: Tensor) -> None:
        """Appends a token to each [R]; `logits` are then of the one after it."""


class CanDecode(Protocol):
    """What sampling asks of a model."""

    def decoder(self, prompts: Sequence[Sequence[int]], group: int, limit: int) -> Decoder:
        """Prefills each of P prompts once, for `group` completions each of at most `limit` tokens."""


@torch.inference_mode()
def sample(
    model: CanDecode,
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
    group = uniforms.shape[1]
    together = max(1, ROWS // group)
    found: list[list[Completion]] = []
    for start in range(0, len(prompts), together):
        batch = slice(start, start + together)
        try:
            completions = _decode(model, prompts[batch], uniforms[batch], temperature, top_p, end_tokens)
        except NotFiniteError as error:
            raise NotFiniteError(start + error.prompt, error.draw, error.position) from error
        found += [completions[first : first + group] for first in range(0, len(completions), group)]
    return found


def _decode(
    model: CanDecode,
    prompts: Sequence[Sequence[int]],
    uniforms: NDArray[np.float64],
    temperature: float,
    top_p: float,
    end_tokens: Sequence[int],
) -> list[Completion]:
    """The completions of all prompts, in one batch."""
    count, group, limit = uniforms.shape
    decoder = model.decoder(prompts, group, limit)
    device = decoder.logits.device
    chooser = torch.from_numpy(uniforms.reshape(count * group, limit)).to(device)
    ends = torch.tensor(list(end_tokens), device=device)
    rows = torch.arange(count * group, device=device)  # of each row in the batch, the completion that it is
    live = torch.ones_like(rows, dtype=torch.bool)
    ids: list[list[int]] = [[] for _ in range(count * group)]
    ended = [False] * (count * group)
    for place in range(limit):
        finite = torch.isfinite(decoder.logits.amax(-1))
        if not finite.all() and len(broken := (live & ~finite).nonzero()):
            prompt, draw = divmod(int(rows[broken[0]]), group)
            raise NotFiniteError(prompt, draw, place)
        token = choose(decoder.logits, chooser[rows, place], temperature, top_p)
        ending = torch.isin(token, ends)
        for row, chosen, end, going in zip(rows.tolist(), token.tolist(), ending.tolist(), live.tolist(), strict=True):
            if going:
                ids[row].append(chosen)
                ended[row] = end
        live &= ~ending
        remaining = int(live.sum())
        if place + 1 == limit or not remaining:
            break
        if (len(rows) - remaining) * LEAVING >= len(rows):
            staying = live.nonzero()[:, 0]
            decoder.keep(staying)
            rows, token, live = rows[staying], token[staying], live[staying]
        decoder.step(token)
    return [Completion(*one) for one in zip(ids, ended, strict=True)]


def choose(logits: Tensor, uniform: Tensor, temperature: float, top_p: float) -> Tensor:
    """Tokens [R] by inverting the cumulated distribution of logits [R, V] at uniform float64 [R]; argmax at temperature 0.

    The nucleus is the smallest set of most likely tokens whose probability reaches top_p (Holtzman et al.,
    arXiv:1904.09751), of equally likely ones the first in the vocabulary; the cumulation runs in the vocabulary's order, so that
    near ties in rank change nothing.
    """
    if temperature == 0:
        return logits.argmax(-1)
    # less the likeliest, so that dividing by next to nothing leaves that finite
    below = logits.float() - logits.amax(-1, keepdim=True).float()
    probabilities = torch.softmax(below.div_(max(temperature, torch.finfo(torch.float32).tiny)), dim=-1)
    if top_p >= 1:
        return _invert(probabilities, uniform)
    if probabilities.shape[-1] <= LIKELY[0]:
        return _from_nucleus(*probabilities.sort(dim=-1, descending=True, stable=True), uniform, top_p)[0]
    chosen = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    rest = torch.arange(len(logits), device=logits.device)
    for likely in (*LIKELY, probabilities.shape[-1]):
        if likely < probabilities.shape[-1]:
            ids, order = probabilities[rest].topk(likely, dim=-1).indices.sort(dim=-1)
            ranked, order = probabilities[rest[:, None], ids].sort(dim=-1, descending=True, stable=True)  # topk leaves equals in any order
            ids = ids.gather(-1, order)
        else:
            ranked, ids = probabilities[rest].sort(dim=-1, descending=True, stable=True)
        tokens, found = _from_nucleus(ranked, ids, uniform[rest], top_p)
        found |= likely >= probabilities.shape[-1]
        chosen[rest[found]] = tokens[found]
        rest = rest[~found]
        if not len(rest):
            break
    return chosen


def _from_nucleus(ranked: Tensor, ids: Tensor, uniform: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Tokens [R] drawn from the nucleus among the likeliest [R, L], and whether none outside can belong to it, bool [R].

    None can where it leaves out one of these that is less likely than all of it.
    """
    mass = ranked.double()
    inside = mass.cumsum(-1) - mass < top_p
    found = ~(inside & (ranked == ranked[:, -1:])).any(-1)
    ids, order = ids.masked_fill(~inside, torch.iinfo(ids.dtype).max).sort(dim=-1)
    place = _place(mass.masked_fill(~inside, 0.0).gather(-1, order), uniform)
    return ids.gather(-1, place[:, None])[:, 0], found


def _invert(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The tokens [R] at which the cumulated probabilities [R, V] pass the uniform share of their sum: the block first, then within it."""
    blocks = nn.functional.pad(probabilities, (0, -probabilities.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1, dtype=torch.float64)
    block = _place(sums, uniform)
    rows = torch.arange(len(block), device=block.device)
    before = sums.cumsum(-1)[rows, block] - sums[rows, block]
    share = (uniform * sums.sum(-1) - before) / sums[rows, block]
    return block * BLOCK + _place(blocks[rows, block].double(), share)


def _place(mass: Tensor, uniform: Tensor) -> Tensor:
    """Where the cumulated mass, float64 [R, L], passes the uniform share of its sum [R]; always at one that has mass."""
    cumulated = mass.cumsum(-1)
    chosen = torch.searchsorted(cumulated, uniform[:, None] * cumulated[:, -1:], right=True)
    # rounding can put the wanted mass at the very end: the first place that all of it is reached at
    return torch.minimum(chosen, torch.searchsorted(cumulated, cumulated[:, -1:].contiguous()))[:, 0]

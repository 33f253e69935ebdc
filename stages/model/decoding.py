"""Attention while completions are sampled: one query per branch, over the prompt that it shares and the tokens of its own.

A heads, K heads of keys and values, R live branches, D width of a head.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from stages.model.attention import Layout, Rule
from stages.model.blocks import Prefill

COPIED_TOKENS = 1024
"""Branches times tokens of the longest prompt, up to which prompts are copied for every branch."""


class Branches:
    """The live branches, in the order of their prompts."""

    def __init__(self, prefill: Prefill, group: int) -> None:
        """`group` branches for each prompt."""
        self.lengths = torch.tensor([span.prompt.stop - span.prompt.start for span in prefill.spans])
        """Of the prompts."""
        self.owners = torch.arange(len(self.lengths)).repeat_interleave(group)
        """The prompt of each branch [R]."""
        self.step = 0
        """Tokens that each has of its own."""

    def keep(self, rows: Tensor) -> None:
        """Goes on with these alone [R]."""
        self.owners = self.owners[rows.cpu()]

    def positions(self) -> Tensor:
        """Of the next token of each [R], on the CPU."""
        return self.lengths[self.owners] + self.step


class Decoding(Layout, Protocol):
    """A row with the next token of every live branch; keys and values of the earlier ones are kept."""

    def keep(self, rows: Tensor) -> None:
        """Called when the branches have been cut down to these [R]."""

    def advance(self) -> None:
        """Called when a row has been through all layers and the branches have one token more."""


def lay_out(prefill: Prefill, branches: Branches, limit: int, copied_tokens: int) -> Decoding:
    """The faster of the two ways, for at most `limit` tokens of each branch's own; see COPIED_TOKENS."""
    shapes = {(keys.shape[0], keys.shape[2], values.shape[2]) for kept in prefill.kept.values() for keys, values in kept}
    are_few = int(branches.lengths.max()) * len(branches.owners) <= copied_tokens
    return (CopiedPrompts if are_few and len(shapes) == 1 else SharedPrompts)(prefill, branches, limit)


class CopiedPrompts:
    """Every branch has its prompt's keys and values before its own, so that one product does for all; for short prompts.

    Prompts end at the same place; before shorter ones there is nothing to see.
    """

    def __init__(self, prefill: Prefill, branches: Branches, limit: int) -> None:
        self._branches, self._limit = branches, limit
        self._widest = int(branches.lengths.max())
        self._ragged = bool((branches.lengths < self._widest).any())
        self._numbers = {layer: number for number, layer in enumerate(prefill.kept)}
        layers = prefill.kept.values()
        self._keys, self._values = (self._copied([[one[which] for one in kept] for kept in layers]) for which in (0, 1))
        self._take_views()

    def keep(self, rows: Tensor) -> None:
        """See Decoding."""
        self._views.clear()
        self._keys = self._kept(self._keys, rows)
        self._values = self._kept(self._values, rows)
        self.advance()

    def advance(self) -> None:
        """See Decoding."""
        if self._branches.step < self._limit:  # else there is no next token
            self._take_views()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Outputs [R, A, D], without gradient; see Layout."""
        heads, rows, width = query.shape
        kv_heads, share = key.shape[0], heads // key.shape[0]
        key_room, value_room, keys, values = self._views[self._numbers[layer]]
        key_room.copy_(key.transpose(0, 1))
        value_room.copy_(value.transpose(0, 1))
        scores = _scaled(query.transpose(0, 1).reshape(rows * kv_heads, share, width), keys, rule.scale)  # [R * K, A/K, places]
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        if rule.window not in self._masks:
            self._masks[rule.window] = self._mask(rule.window, kv_heads, scores)
        mask = self._masks[rule.window]
        if mask is not None:
            scores += mask
        if rule.sinks is not None:
            sinks = rule.sinks.view(kv_heads, share, 1).expand(rows, -1, -1, -1).reshape(rows * kv_heads, share, 1)
            scores = torch.cat([scores, sinks.to(scores.dtype)], -1)
        weights = torch.softmax(scores, -1)  # float32 within, whatever the precision
        if rule.sinks is not None:
            weights = weights[..., :-1]
        return torch.bmm(weights, values).view(rows, heads, -1)

    def _copied(self, kept: list[list[Tensor]]) -> Tensor:
        """Room for the keys or values of all layers [layers, R, K, places, D], with those of the prompts; of each layer [K, P, D] each."""
        first = kept[0][0]
        rows = len(self._branches.owners)
        room = first.new_empty(len(kept), rows, first.shape[0], self._widest + self._limit, first.shape[-1])
        group = rows // len(kept[0])
        for number, of_layers in enumerate(zip(*kept, strict=True)):
            prompt = torch.stack(of_layers)[:, None]
            own = room[:, number * group : (number + 1) * group]
            start = self._widest - prompt.shape[3]
            own[..., :start, :] = 0  # masked, and whatever is there else could be no number
            own[..., start : self._widest, :] = prompt
        return room

    def _kept(self, old: Tensor, rows: Tensor) -> Tensor:
        """The same room with these branches alone; what no token has yet is not copied."""
        new = old.new_empty(old.shape[0], len(rows), *old.shape[2:])
        place = self._widest + self._branches.step
        new[:, :, :, :place] = old[:, rows, :, :place]
        return new

    def _take_views(self) -> None:
        """The views that the next token needs, of all layers at once: room for its key and value, and all up to them."""
        place = self._widest + self._branches.step
        views = (
            self._keys.select(3, place).unbind(),
            self._values.select(3, place).unbind(),
            self._keys.narrow(3, 0, place + 1).flatten(1, 2).mT.unbind(),
            self._values.narrow(3, 0, place + 1).flatten(1, 2).unbind(),
        )
        self._views = list(zip(*views, strict=True))
        self._masks: dict[int | None, Tensor | None] = {}

    def _mask(self, window: int | None, kv_heads: int, scores: Tensor) -> Tensor | None:
        """Added to the scores [R * K, 1, places]; None where all is seen."""
        last = self._widest + self._branches.step
        if not self._ragged and (window is None or window > last):
            return None
        places = torch.arange(last + 1)
        first = self._widest - self._branches.lengths[self._branches.owners]
        if window is not None:
            first = first.clamp(min=last + 1 - window)
        hidden = places < first[:, None]
        mask = torch.zeros(hidden.shape, dtype=scores.dtype).masked_fill_(hidden, -torch.inf)
        return mask.repeat_interleave(kv_heads, 0)[:, None].to(scores.device)


class Seen(NamedTuple):
    """What the next tokens see in layers of one window."""

    own: slice
    """Of each branch's own tokens."""
    prompts: list[tuple[int, slice, slice]]
    """Number of a prompt, its live branches, and the tokens of it that they see: none, perhaps."""
    widest: int
    """The most tokens of a prompt that a branch sees."""


class SharedPrompts:
    """Every prompt's keys and values are there once: products with them and with the branch's own, and one softmax over both.

    Beside a decode step's weights, which pass through all caches, every further operation is slow, so that they are few here.
    """

    def __init__(self, prefill: Prefill, branches: Branches, limit: int) -> None:
        self._branches, self._limit = branches, limit
        self._prompts = {
            layer: [(keys.mT.contiguous(), values.contiguous()) for keys, values in kept] for layer, kept in prefill.kept.items()
        }
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._seen: dict[int | None, Seen] = {}

    def keep(self, rows: Tensor) -> None:
        """See Decoding."""
        self._seen.clear()
        step = self._branches.step
        for layer, own in self._own.items():
            kept = []
            for old in own:
                new = old.new_empty(old.shape[0], len(rows), *old.shape[2:])
                new[:, :, :step] = old[:, rows, :step]
                kept.append(new)
            self._own[layer] = (kept[0], kept[1])

    def advance(self) -> None:
        """See Decoding."""
        self._seen.clear()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Outputs [R, A, D], without gradient; see Layout."""
        heads, rows, _ = query.shape
        kv_heads, share = key.shape[0], heads // key.shape[0]
        if layer not in self._own:
            self._own[layer] = (
                key.new_empty(kv_heads, rows, self._limit, key.shape[-1]),
                value.new_empty(kv_heads, rows, self._limit, value.shape[-1]),
            )
        keys, values = self._own[layer]
        keys[:, :, self._branches.step] = key
        values[:, :, self._branches.step] = value
        seen = self._sight(rule.window)
        queries = query.unflatten(0, (kv_heads, share)).transpose(1, 2).flatten(1, 2)  # [K, R * A/K, D]
        own_keys, own_values = (one[:, :, seen.own].flatten(0, 1) for one in (keys, values))  # [K * R, seen, D]
        own = _scaled(queries.reshape(kv_heads * rows, share, -1), own_keys.mT, rule.scale)
        shared = []
        for number, live, inside in seen.prompts:
            part = _scaled(queries[:, live.start * share : live.stop * share], self._prompts[layer][number][0][..., inside], rule.scale)
            if rule.softcap is not None:
                part = torch.tanh(part / rule.softcap) * rule.softcap
            missing = seen.widest - part.shape[-1]
            shared.append(nn.functional.pad(part, (0, missing), value=-torch.inf) if missing else part)
        if rule.softcap is not None:
            own = torch.tanh(own / rule.softcap) * rule.softcap
        parts = [(torch.cat(shared, 1) if len(shared) > 1 else shared[0]).view(kv_heads * rows, share, -1), own]
        if rule.sinks is not None:
            parts.append(rule.sinks.view(kv_heads, 1, share, 1).expand(-1, rows, -1, -1).reshape(kv_heads * rows, share, 1).to(own.dtype))
        weights = torch.softmax(torch.cat(parts, -1), -1)  # [K * R, A/K, widest + seen]; float32 within, whatever the precision
        out = torch.bmm(weights[..., seen.widest : seen.widest + own.shape[-1]], own_values).view(kv_heads, rows * share, -1)
        for number, live, inside in seen.prompts:
            run = slice(live.start * share, live.stop * share)
            width = inside.stop - inside.start
            if width:
                out[:, run].baddbmm_(weights.view(kv_heads, rows * share, -1)[:, run, :width], self._prompts[layer][number][1][:, inside])
        return out.view(kv_heads, rows, share, -1).transpose(0, 1).flatten(1, 2)

    def _sight(self, window: int | None) -> Seen:
        if window not in self._seen:
            numbers, counts = self._branches.owners.unique_consecutive(return_counts=True)
            prompts, end = [], 0
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                length = int(self._branches.lengths[number])
                first = 0 if window is None else min(length, max(0, length + self._branches.step + 1 - window))
                prompts.append((number, slice(end, end + count), slice(first, length)))
                end += count
            own = slice(0 if window is None else max(0, self._branches.step + 1 - window), self._branches.step + 1)
            self._seen[window] = Seen(own, prompts, max(inside.stop - inside.start for _, _, inside in prompts))
        return self._seen[window]


def _scaled(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """scale * query @ key, batch by batch."""
    return torch.baddbmm(query.new_empty(()), query, key, beta=0, alpha=scale)

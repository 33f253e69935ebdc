"""Attention while completions are sampled: one query per branch, over the prompt that it shares and the tokens of its own.

A heads, K heads of keys and values, R live branches, D width of a head.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from stages.model.attention import Rule
from stages.model.blocks import Prefill


class Seen(NamedTuple):
    """What the next tokens see in layers of one window."""

    own: slice
    """Of each branch's own tokens."""
    prompts: list[tuple[int, slice, slice]]
    """Number of a prompt, its live branches, and the tokens of it that they see: none, perhaps."""
    widest: int
    """The most tokens of a prompt that a branch sees."""


class Decoding:
    """A row with the next token of every live branch, in the order of their prompts; keys and values of the earlier ones are kept.

    Each branch has one query: plain products with its prompt and with itself, and one softmax over both. Beside a decode step's
    weights, which pass through all caches, every further operation is slow, so that they are few here.
    """

    def __init__(self, prefill: Prefill, group: int, limit: int) -> None:
        """`group` branches for each prompt, of at most `limit` tokens."""
        self._lengths = [span.prompt.stop - span.prompt.start for span in prefill.spans]
        self._prompts = {
            layer: [(keys.mT.contiguous(), values.contiguous()) for keys, values in kept] for layer, kept in prefill.kept.items()
        }
        self._limit = limit
        self._owners = torch.arange(len(self._lengths)).repeat_interleave(group)
        self._step = 0
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._seen: dict[int | None, Seen] = {}

    def keep(self, rows: Tensor) -> None:
        """Goes on with these branches alone [R]."""
        self._owners = self._owners[rows.cpu()]
        self._seen.clear()
        for layer, own in self._own.items():
            kept = []
            for old in own:
                new = old.new_empty(old.shape[0], len(rows), *old.shape[2:])
                new[:, :, : self._step] = old[:, rows, : self._step]
                kept.append(new)
            self._own[layer] = (kept[0], kept[1])

    def positions(self) -> Tensor:
        """Of the next token of each live branch [R]."""
        return torch.tensor(self._lengths)[self._owners] + self._step

    def advance(self) -> None:
        """Called when a row has been through all layers."""
        self._step += 1
        self._seen.clear()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Outputs [R, A, D], without gradient; see Layout."""
        heads, rows, _ = query.shape
        groups, share = key.shape[0], heads // key.shape[0]
        if layer not in self._own:
            self._own[layer] = (
                key.new_empty(groups, rows, self._limit, key.shape[-1]),
                value.new_empty(groups, rows, self._limit, value.shape[-1]),
            )
        keys, values = self._own[layer]
        keys[:, :, self._step] = key
        values[:, :, self._step] = value
        seen = self._sight(rule.window)
        queries = query.unflatten(0, (groups, share)).transpose(1, 2).flatten(1, 2)  # [K, R * A/K, D]
        own_keys, own_values = (one[:, :, seen.own].flatten(0, 1) for one in (keys, values))  # [K * R, seen, D]
        own = _scaled(queries.reshape(groups * rows, share, -1), own_keys.mT, rule.scale)
        shared = []
        for number, live, inside in seen.prompts:
            part = _scaled(queries[:, live.start * share : live.stop * share], self._prompts[layer][number][0][..., inside], rule.scale)
            if rule.softcap is not None:
                part = torch.tanh(part / rule.softcap) * rule.softcap
            missing = seen.widest - part.shape[-1]
            shared.append(nn.functional.pad(part, (0, missing), value=-torch.inf) if missing else part)
        if rule.softcap is not None:
            own = torch.tanh(own / rule.softcap) * rule.softcap
        parts = [(torch.cat(shared, 1) if len(shared) > 1 else shared[0]).view(groups * rows, share, -1), own]
        if rule.sinks is not None:
            parts.append(rule.sinks.view(groups, 1, share, 1).expand(-1, rows, -1, -1).reshape(groups * rows, share, 1).to(own.dtype))
        weights = torch.softmax(torch.cat(parts, -1), -1, dtype=torch.float32).to(value.dtype)  # [K * R, A/K, widest + seen]
        out = torch.bmm(weights[..., seen.widest : seen.widest + own.shape[-1]], own_values).view(groups, rows * share, -1)
        for number, live, inside in seen.prompts:
            run = slice(live.start * share, live.stop * share)
            width = inside.stop - inside.start
            if width:
                out[:, run].baddbmm_(weights.view(groups, rows * share, -1)[:, run, :width], self._prompts[layer][number][1][:, inside])
        return out.view(groups, rows, share, -1).transpose(0, 1).flatten(1, 2)

    def _sight(self, window: int | None) -> Seen:
        if window not in self._seen:
            numbers, counts = self._owners.unique_consecutive(return_counts=True)
            prompts, end = [], 0
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                length = self._lengths[number]
                first = 0 if window is None else min(length, max(0, length + self._step + 1 - window))
                prompts.append((number, slice(end, end + count), slice(first, length)))
                end += count
            own = slice(0 if window is None else max(0, self._step + 1 - window), self._step + 1)
            self._seen[window] = Seen(own, prompts, max(inside.stop - inside.start for _, _, inside in prompts))
        return self._seen[window]


def _scaled(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """scale * query @ key, batch by batch."""
    return torch.baddbmm(query.new_empty(()), query, key, beta=0, alpha=scale)

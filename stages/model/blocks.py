"""Attention by blocks over a packed row: every prompt against itself, every branch against its prompt and against itself.

A short row is one block with a mask: what blocks would save there is less than the calls they take.

A heads, K heads of keys and values, N tokens of the row, D width of a head, P tokens of a prompt, R branches, T their tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stages.model.attention import Rule
from stages.model.kernels import Attended, Block, Gradients, additive, attend, attend_backward, merge

SHORT_TOKENS = 128
"""Tokens of a row that is one block, at most."""


class Span(NamedTuple):
    """Where a group lies in the packed row, and its branches' tokens among those of all branches."""

    prompt: slice
    """Its prompt in the row."""
    branches: slice
    """Its branches in the row, which follow."""
    tokens: slice
    """Its branches among the tokens of all branches."""
    positions: Tensor
    """Of the branches' tokens in their own sequences."""


class PackedRow:
    """Groups one after the other, each its prompt once and then its branches, whose positions go on where the prompt's end."""

    def __init__(
        self, prompts: Sequence[int], branches: Sequence[Sequence[int]], device: torch.device, short_tokens: int = SHORT_TOKENS
    ) -> None:
        """Of each group the tokens of its prompt, and those of its branches; no branch is empty. Up to `short_tokens` are one block."""
        lengths = [length for group in branches for length in group]
        self._shape = len(lengths), max(lengths, default=0)
        self._even = len(prompts) == 1 and len(set(lengths)) == 1
        self.spans: list[Span] = []
        positions: list[int] = []
        ends: list[int] = []
        padded: list[int] = []
        owners: tuple[list[int], list[int]] = [], []
        done = 0
        for number, (prompt, group) in enumerate(zip(prompts, branches, strict=True)):
            start, tokens = len(positions), slice(done, done := done + sum(group))
            owners[0].extend([number] * (prompt + sum(group)))
            owners[1].extend([0] * prompt)
            positions += range(prompt)
            for branch, length in enumerate(group, start=1):
                owners[1].extend([branch] * length)
                first = len(positions)
                positions += range(prompt, prompt + length)
                padded += [*range(first, first + length), *([first + length - 1] * (self._shape[1] - length))]
                ends.append(first + length - 1)
            after = torch.tensor(positions[start + prompt :], dtype=torch.long, device=device)
            self.spans.append(Span(slice(start, start + prompt), slice(start + prompt, len(positions)), tokens, after))
        self.positions = torch.tensor(positions, device=device)
        """Of every token in its own sequence [N]."""
        self.ends = torch.tensor(ends, device=device)
        """The place in the row of each branch's last token [R]."""
        self._padded = torch.tensor(padded, device=device)
        """The place in the row of each token of the branches, padded to the longest with the branch's last [R * longest]."""
        real = [place < length for length in lengths for place in range(self._shape[1])]
        self._real = torch.tensor(real, dtype=torch.bool, device=device)
        """Which of them are no padding."""
        self.is_short = len(positions) <= short_tokens
        self._masks: dict[int | None, Tensor] = {}
        self._owners = torch.tensor(owners, device=device)
        """Of every token its group, and which of its branches it is in, 0 in the prompt [2, N]."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:  # noqa: ARG002 - nothing is kept
        """Outputs [N, A, D], with the gradient; see Layout."""
        return (_WholeAttention if self.is_short else _BlockAttention).apply(query, key, value, self, rule)

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """What every token of the row sees of it, as a block has it [N, N]."""
        if window not in self._masks:
            group, branch = self._owners
            places = torch.arange(len(group), device=group.device)
            visible = (group[:, None] == group) & (places[:, None] >= places) & ((branch == 0) | (branch[:, None] == branch))
            if window is not None:
                visible &= self.positions[:, None] - self.positions < window
            self._masks[window] = additive(visible, dtype)
        return self._masks[window]

    @property
    def has_branches(self) -> bool:
        """Whether there is more in the row than prompts."""
        return self._shape[0] > 0

    def padded(self, tokens: Tensor) -> Tensor:
        """Of the row's tokens [N, A, ...] those of the branches, padded to the longest, [R, A, longest, ...]."""
        chosen = tokens[self.spans[0].branches] if self._even else tokens.index_select(0, self._padded)
        return chosen.unflatten(0, self._shape).transpose(1, 2)

    def unpadded(self, branches: Tensor) -> Tensor:
        """The reverse: [R, A, longest, ...] to the tokens of all branches [T, A, ...]."""
        tokens = branches.transpose(1, 2).flatten(0, 1)
        return tokens if self._even else tokens[self._real]

    def without_padding(self, branches: Tensor) -> Tensor:
        """The same numbers [R, A, longest, D], zero where there is no token."""
        return branches if self._even else branches * self._real.view(self._shape)[:, None, :, None]


class _Blocks(NamedTuple):
    """The blocks of one layer's attention over a packed row; queries [N, A, D], keys and values [N, K, D]."""

    packed: PackedRow
    query: Tensor
    key: Tensor
    value: Tensor
    rule: Rule

    def own(self) -> Block:
        """Every branch against itself, [R, A, longest, D]."""
        return self._causal(*(self._wide(self.packed.padded(one)) for one in (self.query, self.key, self.value)))

    def prompt(self, span: Span) -> Block:
        """A prompt against itself, [1, A, P, D]."""
        return self._causal(*(self._wide(heads_first(one[span.prompt])) for one in (self.query, self.key, self.value)))

    def shared(self, span: Span, prompt: Block) -> tuple[Block, int] | None:
        """A group's branches against their prompt, [1, A, tokens, D], and the first token of it that any sees; None where none does."""
        length = span.prompt.stop - span.prompt.start
        window = self.rule.window
        first = 0 if window is None else max(0, length + 1 - window)
        if first >= length:
            return None
        mask = None
        if window is not None:
            visible = span.positions[:, None] - torch.arange(first, length, device=span.positions.device) < window
            mask = None if visible.all() else additive(visible, self.query.dtype)
        keys, values = (one[:, :, first:] for one in (prompt.key, prompt.value))
        query = heads_first(self.query[span.branches])
        return Block(query, keys, values, mask, causal=False, scale=self.rule.scale, softcap=self.rule.softcap), first

    def _causal(self, query: Tensor, key: Tensor, value: Tensor) -> Block:
        length, window = query.shape[-2], self.rule.window
        if window is None or length <= window:
            return Block(query, key, value, None, causal=True, scale=self.rule.scale, softcap=self.rule.softcap)
        places = torch.arange(length, device=query.device)
        distance = places[:, None] - places
        mask = additive((distance >= 0) & (distance < window), query.dtype)
        return Block(query, key, value, mask, causal=False, scale=self.rule.scale, softcap=self.rule.softcap)

    def _wide(self, values: Tensor) -> Tensor:
        return widened(values, self.query.shape[1])

    def narrow(self, gradient: Tensor) -> Tensor:
        """The reverse for gradients of keys and values, [..., A, D] to [..., K, D]."""
        heads, groups = self.query.shape[1], self.key.shape[1]
        return gradient if heads == groups else gradient.unflatten(-2, (groups, heads // groups)).sum(-2)


def widened(values: Tensor, heads: int) -> Tensor:
    """Keys or values [B, K, L, D], each as often as heads share it, [B, A, L, D]."""
    times = heads // values.shape[1]
    return values if times == 1 else values[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2)


def heads_first(tokens: Tensor) -> Tensor:
    """[L, A, ...] as a block has it, [1, A, L, ...]."""
    return tokens.transpose(0, 1)[None]


def tokens_first(heads: Tensor) -> Tensor:
    """The reverse."""
    return heads[0].transpose(0, 1)


class _BlockAttention(torch.autograd.Function):
    """The blocks of a packed row, merged; neither scores nor weights are kept for the gradient, which computes them again."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, packed: PackedRow, rule: Rule) -> Tensor:
        blocks = _Blocks(packed, query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), rule)
        out, lse = _with_sinks(_by_blocks(blocks), rule.sinks)  # [N, A, D], [N, A]
        ctx.packed, ctx.rule = packed, rule
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        packed: PackedRow = ctx.packed
        upstream: Tensor = gradients[0]
        blocks = _Blocks(packed, query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), ctx.rule)
        wide = _back_by_blocks(blocks, out, lse, upstream)
        narrow = Gradients(wide.query, blocks.narrow(wide.key), blocks.narrow(wide.value))
        return *(one.transpose(0, 1) for one in narrow), None, None


class _WholeAttention(torch.autograd.Function):
    """The packed row as one block with a mask."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, packed: PackedRow, rule: Rule) -> Tensor:
        keys, values = (widened(one[None], len(query)) for one in (key, value))
        found = attend(_whole(packed, rule, query[None], keys, values))
        if rule.sinks is not None:
            found = _with_sinks(found, rule.sinks[:, None])
        ctx.packed, ctx.rule, ctx.kv_heads = packed, rule, len(key)
        ctx.save_for_backward(query[None], keys, values, *found)
        return tokens_first(found.out)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        query, keys, values, out, lse = ctx.saved_tensors
        found = attend_backward(_whole(ctx.packed, ctx.rule, query, keys, values), out, lse, heads_first(gradients[0]))
        narrow = (one if one.shape[1] == ctx.kv_heads else one.unflatten(1, (ctx.kv_heads, -1)).sum(2) for one in (found.key, found.value))
        return found.query[0], *(one[0] for one in narrow), None, None


def _whole(packed: PackedRow, rule: Rule, query: Tensor, keys: Tensor, values: Tensor) -> Block:
    """The row as a block, [1, A, N, D] each."""
    return Block(query, keys, values, packed.mask(rule.window, query.dtype), causal=False, scale=rule.scale, softcap=rule.softcap)


def _with_sinks(found: Attended, sinks: Tensor | None) -> Attended:
    """The same with each head's sink taking its share; `sinks` as they add to lse."""
    if sinks is None:
        return found
    whole = torch.logaddexp(found.lse, sinks.float())
    return Attended((found.out * (found.lse - whole).exp()[..., None]).to(found.out.dtype), whole)


def _by_blocks(blocks: _Blocks) -> Attended:
    """Outputs [N, A, D] and lse [N, A] of the whole row."""
    packed = blocks.packed
    own = Attended(*map(packed.unpadded, attend(blocks.own()))) if packed.has_branches else None
    parts: list[Attended] = []
    for span in packed.spans:
        prompt = None
        if span.prompt.start < span.prompt.stop:
            prompt = blocks.prompt(span)
            parts.append(Attended(*map(tokens_first, attend(prompt))))
        if own is None:
            continue
        part = Attended(own.out[span.tokens], own.lse[span.tokens])
        if prompt is not None and (shared := blocks.shared(span, prompt)):
            part = merge(Attended(*map(tokens_first, attend(shared[0]))), part)
        parts.append(part)
    return Attended(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))


def _back_by_blocks(blocks: _Blocks, out: Tensor, lse: Tensor, upstream: Tensor) -> Gradients:
    """Gradients of queries, keys and values, as many of these as heads."""
    packed = blocks.packed
    own = None
    if packed.has_branches:
        through = packed.without_padding(packed.padded(upstream))
        found = attend_backward(blocks.own(), packed.padded(out), packed.padded(lse), through)
        own = Gradients(*map(packed.unpadded, found))
    parts: list[Gradients] = []
    for span in packed.spans:
        after = None if own is None else Gradients(*(one[span.tokens] for one in own))
        if span.prompt.start < span.prompt.stop:
            block = blocks.prompt(span)
            inside = (heads_first(one[span.prompt]) for one in (out, lse, upstream))
            before = Gradients(*map(tokens_first, attend_backward(block, *inside)))
            if after is not None and (shared := blocks.shared(span, block)):
                those, first = shared
                inside = (heads_first(one[span.branches]) for one in (out, lse, upstream))
                found = Gradients(*map(tokens_first, attend_backward(those, *inside)))
                after = after._replace(query=after.query + found.query)
                before.key[first:] += found.key
                before.value[first:] += found.value
            parts.append(before)
        if after is not None:
            parts.append(after)
    return Gradients(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))


class Prefill(PackedRow):
    """Prompts alone, whose keys and values are kept by layer, for the branches to come."""

    def __init__(self, prompts: Sequence[int], device: torch.device, short_tokens: int = SHORT_TOKENS) -> None:
        super().__init__(prompts, [()] * len(prompts), device, short_tokens)
        self.kept: dict[int, list[tuple[Tensor, Tensor]]] = {}
        """By layer, of each prompt its keys and values [K, P, D]."""
        self.rules: dict[int, Rule] = {}
        """By layer, how it scores."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Outputs [N, A, D]; see Layout."""
        self.rules[layer] = rule
        # copies: a view would hold what it was cut from, queries of all layers among it
        self.kept[layer] = [(key[:, span.prompt].clone(), value[:, span.prompt].clone()) for span in self.spans]
        return super().attend(layer, query, key, value, rule)

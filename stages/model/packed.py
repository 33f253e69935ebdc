"""Passes over packed rows: a group's prompt once, then its completions as branches. The same numbers as one row per completion.

A group of G completions of C tokens after a prompt of P is a row of P + G*C tokens instead of G rows of P + C.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.model import attention
from stages.model.attention import Layout
from stages.model.blocks import SHORT_TOKENS, PackedRow, Prefill
from stages.model.decoding import COPIED_TOKENS, Branches, lay_out
from stages.model.groups import Completed, TokenScores
from stages.model.llama import LlamaStack
from stages.model.vocabulary import Picked, Vocabulary

TOKENS = 1024
"""Tokens of one pass over several groups, at most, unless one group has more."""


class PackedPasses:
    """A model whose attention goes by branches."""

    def __init__(
        self,
        model: PreTrainedModel,
        chunk: int,
        written_out: bool = True,
        short_tokens: int = SHORT_TOKENS,
        copied_tokens: int = COPIED_TOKENS,
    ) -> None:
        """`chunk` is how many rows of logits are held at once; layers are `written_out` where they can be; see the two limits."""
        self.model = model
        self.short_tokens, self.copied_tokens = short_tokens, copied_tokens
        self._chunk = chunk
        self._vocabulary = Vocabulary(model)
        self.stack = LlamaStack.of(model) if written_out else None
        """The layers written out; None where the model's own modules are called."""

    def fits(self, groups: Sequence[Completed]) -> bool:
        """Whether the groups are few enough for one pass."""
        return sum(len(group.prompt) + sum(map(len, group.completions)) for group in groups) <= TOKENS

    def token_scores(self, groups: Sequence[Completed], temperature: float) -> list[TokenScores]:
        """Scores the tokens of several groups in one pass, with the adapter that is on; one entry per group."""
        packed, hidden = self._hidden(groups)
        predicting: list[int] = []
        rows: list[int] = []
        for span, group in zip(packed.spans, groups, strict=True):
            # the prompt's last token predicts every first token; each token but a branch's last predicts the one after it
            shared, first = len(predicting), span.branches.start
            predicting.append(first - 1)
            for completion in group.completions:
                inner = len(completion) - 1
                rows += [shared, *range(len(predicting), len(predicting) + inner)]
                predicting += range(first, first + inner)
                first += len(completion)
        device = hidden.device
        tokens = [token for group in groups for completion in group.completions for token in completion]
        picked = Picked(torch.tensor(rows, device=device), torch.tensor(tokens, device=device))
        found = self._vocabulary.token_scores(hidden[torch.tensor(predicting, device=device)], picked, temperature, self._chunk)
        sizes = [sum(map(len, group.completions)) for group in groups]
        return [TokenScores(*parts) for parts in zip(*(one.split(sizes) for one in found), strict=True)]

    def last_hidden(self, groups: Sequence[Completed]) -> Tensor:
        """The hidden state of every completion's last token after the final norm, float32 [sum of G, H]."""
        packed, hidden = self._hidden(groups)
        return hidden[packed.ends].float()

    def decoder(self, prompts: Sequence[Sequence[int]], group: int, limit: int) -> "PackedDecoder":
        """Prefills each of P prompts once, for `group` completions each of at most `limit` tokens."""
        return PackedDecoder(self, self._vocabulary, prompts, group, limit)

    def _hidden(self, groups: Sequence[Completed]) -> tuple[PackedRow, Tensor]:
        lengths = [[len(completion) for completion in group.completions] for group in groups]
        packed = PackedRow([len(group.prompt) for group in groups], lengths, self.model.device, self.short_tokens)
        row = [token for group in groups for part in (group.prompt, *group.completions) for token in part]
        return packed, self.run(row, packed.positions, packed)

    def renew(self) -> None:
        """To be called when adapters were put into the model."""
        if self.stack is not None:
            self.stack.renew()

    def run(self, row: Sequence[int] | Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Hidden states [N, H] of a row of tokens after the final norm."""
        ids = torch.as_tensor(row, device=self.model.device)
        if self.stack is not None:
            return self.stack.run(ids, positions, layout)
        backbone: nn.Module = self.model.base_model
        with attention.laid_out(self.model.config, layout):
            output: Any = backbone(input_ids=ids[None], position_ids=positions[None].to(ids.device), use_cache=False)
        return output.last_hidden_state[0]


class PackedDecoder:
    """The next token of every live branch in one row."""

    def __init__(self, passes: PackedPasses, vocabulary: Vocabulary, prompts: Sequence[Sequence[int]], group: int, limit: int) -> None:
        self._passes, self._vocabulary = passes, vocabulary
        device = passes.model.device
        prefill = Prefill([len(prompt) for prompt in prompts], device, passes.short_tokens)
        row = torch.tensor([token for prompt in prompts for token in prompt], device=device)
        hidden = passes.run(row, prefill.positions, prefill)
        last = torch.tensor([span.prompt.stop - 1 for span in prefill.spans], device=device)
        self._branches = Branches(prefill, group)
        self._layout = lay_out(prefill, self._branches, limit, passes.copied_tokens)
        self.logits = vocabulary.logits(hidden[last]).T.repeat_interleave(group, 0)
        """float32 [R, V], of each live branch's next token."""

    def keep(self, rows: Tensor) -> None:
        """Goes on with these branches alone [R]; their logits are to be read before."""
        self._branches.keep(rows)
        self._layout.keep(rows)

    def step(self, tokens: Tensor) -> None:
        """Appends a token to each live branch [R]; `logits` are then of the one after it."""
        hidden = self._passes.run(tokens, self._branches.positions(), self._layout)
        self._branches.step += 1
        self._layout.advance()
        self.logits = self._vocabulary.logits(hidden).T.contiguous()

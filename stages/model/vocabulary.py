"""From hidden states to the vocabulary: logits, and log-probabilities of given tokens, a few rows at a time.

A row's logits are as long as the vocabulary, so no more than a chunk of them is held; the gradient with respect to a hidden
state, which is the token's row of the weights less the expected one, is computed while the chunk is there, and only it is kept.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

BLOCK = 192
"""Rows of the weights in one of many equal products."""


class Picked(NamedTuple):
    """The tokens that are scored: each was sampled after one of the hidden states."""

    row: Tensor
    """Number of the hidden state, int64 [N]."""
    token: Tensor
    """int64 [N]."""


class Vocabulary:
    """A model's output embedding with what the model does to its logits: a factor, and a cap."""

    def __init__(self, model: PreTrainedModel) -> None:
        head: nn.Module | None = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ValueError(f"{type(model).__name__} has no linear output embedding")
        text = model.config.get_text_config(decoder=True)
        self.weight, self.bias = head.weight, head.bias
        self.factor = float(getattr(text, "logit_scale", None) or 1.0) / float(getattr(text, "logits_scaling", None) or 1.0)
        self.cap: float | None = getattr(text, "final_logit_softcapping", None)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [V, R] of hidden states [R, H]."""
        found = tall_product(self.weight, hidden)
        if self.bias is not None:
            found = found + self.bias[:, None]
        found = found.float() if self.factor == 1 else found.float() * self.factor
        return found if self.cap is None else torch.tanh(found / self.cap) * self.cap

    def token_scores(self, hidden: Tensor, picked: Picked, temperature: float, chunk: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities under the tempered distribution, with the gradient, and its entropy without; float32 [N] each.

        `hidden` [U, H]; at most `chunk` rows of logits are held at once.
        """
        return _TokenScores.apply(hidden, picked, self, temperature, chunk)


def tall_product(weight: Tensor, states: Tensor) -> Tensor:
    """weight [V, H] times states [R, H], as [V, R]; on the CPU block by block, which is faster than one product for tens of rows."""
    count = len(weight) // BLOCK
    if count < 2 or weight.device.type != "cpu" or (torch.is_grad_enabled() and states.requires_grad):
        return weight @ states.T
    end = count * BLOCK
    found = weight.new_empty(len(weight), len(states))
    torch.bmm(weight[:end].view(count, BLOCK, -1), states.T.expand(count, -1, -1), out=found[:end].view(count, BLOCK, -1))
    if end < len(weight):
        torch.mm(weight[end:], states.T, out=found[end:])
    return found


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, picked: Picked, vocabulary: Vocabulary, temperature: float, chunk: int) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[0]
        log_probs = torch.empty(len(picked.row), dtype=torch.float32, device=hidden.device)
        entropy = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        directions = torch.empty(len(picked.row), hidden.shape[1], dtype=torch.float32, device=hidden.device) if wanted else None
        for start in range(0, len(hidden), chunk):
            rows = slice(start, min(start + chunk, len(hidden)))
            here = ((picked.row >= rows.start) & (picked.row < rows.stop)).nonzero()[:, 0]
            row, token = picked.row[here] - start, picked.token[here]
            logits = vocabulary.logits(hidden[rows])  # [V, n]
            slope = None if vocabulary.cap is None or directions is None else 1 - (logits / vocabulary.cap).square()
            logits -= logits.amax(0)
            logits /= temperature
            weights = logits.exp()
            total = weights.sum(0)
            norm = total.log()
            log_probs[here] = logits[token, row] - norm[row]
            # a weight of 0 times minus infinity would be no number
            entropy[rows] = norm - logits.clamp_(min=-1e30).mul_(weights).sum(0) / total
            if directions is not None:
                weights /= total
                chosen = vocabulary.weight[token].float()
                if slope is not None:
                    weights *= slope
                    chosen = chosen * slope[token, row][:, None]
                expected = (vocabulary.weight.T @ weights.to(vocabulary.weight.dtype)).T.float()  # [n, H]
                directions[here] = (chosen - expected[row]) * (vocabulary.factor / temperature)
        ctx.rows, ctx.shape, ctx.dtype = picked.row, hidden.shape, hidden.dtype
        if directions is not None:
            ctx.save_for_backward(directions)
        entropy = entropy[picked.row]
        ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (directions,) = ctx.saved_tensors
        found = torch.zeros(ctx.shape, dtype=torch.float32, device=directions.device)
        found.index_add_(0, ctx.rows, directions * gradients[0][:, None])
        return found.to(ctx.dtype), None, None, None, None

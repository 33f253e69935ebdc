"""Forward passes over whole sequences: one padded row per sequence, logits only where a token is predicted.

Rows are padded on the right, where a causal model cannot see, and masks come from lengths; so any token serves as the
pad, and an end token that is also the pad loses nothing. Log-probabilities are float32 whatever the weights' precision.
"""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

PAD = 0
TOKENS = 4096
"""Padded tokens of one pass over several groups, at most, unless one group has more."""
LOGITS = 2**25
"""Numbers of the logits of one pass over several groups, at most, unless one group has more."""


class TokenScores(NamedTuple):
    """Of the completions' tokens, one after the other, float32 [N]."""

    log_probs: Tensor
    """Log-probability of each token under the tempered distribution, before top-p, nats; carries the gradient."""
    entropy: Tensor
    """Entropy of that distribution, nats; without gradient."""


class Completed(NamedTuple):
    """A prompt and the G completions that were sampled after it, the end tokens included."""

    prompt: Sequence[int]
    completions: Sequence[Sequence[int]]

    def rows(self) -> list[list[int]]:
        """Whole sequences, one per completion."""
        return [[*self.prompt, *completion] for completion in self.completions]


def passes(groups: Sequence[Completed], vocabulary: int = 0) -> list[range]:
    """Which neighbouring groups go through the model together: as many as TOKENS and LOGITS allow, and at least one.

    `vocabulary` is the width of the logits; 0 where none are computed.
    """
    found: list[range] = []
    start = 0
    for end in range(1, len(groups) + 1):
        together = groups[start:end]
        rows = sum(len(group.completions) for group in together)
        longest = max(len(row) for group in together for row in group.rows())
        numbers = rows * (longest - min(len(group.prompt) for group in together) + 1) * vocabulary
        if end - start > 1 and (rows * longest > TOKENS or numbers > LOGITS):
            found.append(range(start, end - 1))
            start = end - 1
    return [*found, range(start, len(groups))] if groups else []


def group_scores(model: PreTrainedModel, groups: Sequence[Completed], temperature: float) -> list[TokenScores]:
    """Scores the tokens of several groups in one pass, with the adapter that is on; one entry per group."""
    rows = [row for group in groups for row in group.rows()]
    longest = max(map(len, rows))
    begins = [len(group.prompt) for group in groups for _ in group.completions]
    keep = longest - min(begins) + 1
    logits = _logits(model, rows, keep)  # [rows, keep, V]: from the last token of the shortest prompt on
    device = logits.device
    # the token at place p is predicted at p - 1
    spots = [(number, place) for number, row in enumerate(rows) for place in range(begins[number], len(row))]
    row, place = torch.tensor(spots, device=device).T
    picked = torch.tensor([rows[number][place] for number, place in spots], device=device)
    distribution = torch.log_softmax(logits[row, place - 1 - (longest - keep)].float() / temperature, dim=-1)  # [N, V]
    with torch.no_grad():
        entropy = torch.special.entr(distribution.exp()).sum(-1)  # 0 for what cannot be drawn, where p log p is not a number
    log_probs = distribution.gather(-1, picked[:, None])[:, 0]
    sizes = [sum(map(len, group.completions)) for group in groups]
    return [TokenScores(*parts) for parts in zip(log_probs.split(sizes), entropy.split(sizes), strict=True)]


def last_hidden(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> Tensor:
    """The hidden state of each row's last token after the final norm, float32 [B, H]; no vocabulary projection is computed."""
    backbone = model.base_model
    output = backbone(**_inputs(backbone, rows, model.device), use_cache=False)
    last = torch.tensor([len(row) - 1 for row in rows], device=model.device)
    return output.last_hidden_state[torch.arange(len(rows), device=model.device), last].float()


def hidden_width(config: PreTrainedConfig) -> int:
    """Width of the hidden state after the final norm; some OPT models project it to another one than their layers have."""
    text = config.get_text_config(decoder=True)
    return int(getattr(text, "word_embed_proj_dim", text.hidden_size))


def vocabulary(model: PreTrainedModel) -> int:
    """The width of the model's logits."""
    return int(model.config.get_text_config(decoder=True).vocab_size)


def accepts(model: torch.nn.Module, argument: str) -> bool:
    """Whether the model's forward takes an argument of this name; transformers' architectures differ in it."""
    return argument in inspect.signature(model.forward).parameters


def _logits(model: PreTrainedModel, rows: Sequence[Sequence[int]], keep: int) -> Tensor:
    inputs = _inputs(model, rows, model.device)
    if accepts(model, "logits_to_keep"):
        return model(**inputs, use_cache=False, logits_to_keep=keep).logits
    return model(**inputs, use_cache=False).logits[:, -keep:]


def _inputs(model: torch.nn.Module, rows: Sequence[Sequence[int]], device: torch.device) -> dict[str, Any]:
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), PAD)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = 1
    inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
    if accepts(model, "position_ids"):
        inputs["position_ids"] = torch.arange(longest, device=device).expand(len(rows), -1)
    return inputs

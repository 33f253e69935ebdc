"""Passes with one padded row per completion: what any architecture takes, and what packed rows are held against.

Rows are padded on the right in passes over whole sequences and on the left where completions are sampled, and masks come from
lengths; so any token serves as the pad, and an end token that is also the pad loses nothing.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from stages.core.errors import BaseError
from stages.model.groups import Completed, TokenScores

PAD = 0
TOKENS = 4096
"""Padded tokens of one pass over several groups, at most, unless one group has more."""
LOGITS = 2**25
"""Numbers of the logits of one pass over several groups, at most, unless one group has more."""


class PaddedPasses:
    """A model with its own attention."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)

    def renew(self) -> None:
        """Nothing is to be done."""

    def fits(self, groups: Sequence[Completed]) -> bool:
        """Whether the groups are few enough for one pass."""
        rows = sum(len(group.completions) for group in groups)
        longest = max(len(row) for group in groups for row in group.rows())
        predicted = longest - min(len(group.prompt) for group in groups) + 1
        return rows * longest <= TOKENS and rows * predicted * self._vocabulary <= LOGITS

    def token_scores(self, groups: Sequence[Completed], temperature: float) -> list[TokenScores]:
        """Scores the tokens of several groups in one pass, with the adapter that is on; one entry per group."""
        rows = [row for group in groups for row in group.rows()]
        longest = max(map(len, rows))
        begins = [len(group.prompt) for group in groups for _ in group.completions]
        keep = longest - min(begins) + 1
        logits = self._logits(rows, keep)  # [rows, keep, V]: from the last token of the shortest prompt on
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

    def last_hidden(self, groups: Sequence[Completed]) -> Tensor:
        """The hidden state of every completion's last token after the final norm, float32 [sum of G, H]; no vocabulary projection."""
        rows = [row for group in groups for row in group.rows()]
        backbone = self.model.base_model
        output = backbone(**_inputs(backbone, rows, self.model.device), use_cache=False)
        last = torch.tensor([len(row) - 1 for row in rows], device=self.model.device)
        return output.last_hidden_state[torch.arange(len(rows), device=self.model.device), last].float()

    def decoder(self, prompts: Sequence[Sequence[int]], group: int, limit: int) -> "PaddedDecoder":  # noqa: ARG002 - the cache grows
        """Prefills each of P prompts once, for `group` completions each of at most `limit` tokens; raises BaseError."""
        require_cache(self.model)
        return PaddedDecoder(self.model, prompts, group)

    def _logits(self, rows: Sequence[Sequence[int]], keep: int) -> Tensor:
        inputs = _inputs(self.model, rows, self.model.device)
        if accepts(self.model, "logits_to_keep"):
            return self.model(**inputs, use_cache=False, logits_to_keep=keep).logits
        return self.model(**inputs, use_cache=False).logits[:, -keep:]


class PaddedDecoder:
    """Completions in one batch with transformers' cache."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], group: int) -> None:
        self._model = model
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), PAD)
        mask = torch.zeros((len(prompts), longest), dtype=torch.long)
        for number, prompt in enumerate(prompts):
            ids[number, longest - len(prompt) :] = torch.tensor(prompt)
            mask[number, longest - len(prompt) :] = 1
        self._mask = mask.to(model.device)
        self._cache = DynamicCache(config=model.config)
        logits = self._run(ids.to(model.device), (self._mask.cumsum(-1) - 1).clamp(min=0))
        self._cache.batch_repeat_interleave(group)
        self._mask = self._mask.repeat_interleave(group, 0)
        self._positions = torch.tensor([len(prompt) for prompt in prompts], device=model.device).repeat_interleave(group)
        self.logits = logits.repeat_interleave(group, 0)
        """[R, V], of each live completion's next token."""

    def keep(self, rows: Tensor) -> None:
        """Goes on with these completions alone [R]."""
        self._cache.batch_select_indices(rows)
        self._mask, self._positions = self._mask[rows], self._positions[rows]

    def step(self, tokens: Tensor) -> None:
        """Appends a token to each live completion [R]; `logits` are then of the one after it."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        self.logits = self._run(tokens[:, None], self._positions[:, None])
        self._positions = self._positions + 1

    def _run(self, ids: Tensor, positions: Tensor) -> Tensor:
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": self._mask, "use_cache": True}
        inputs["cache" if accepts(self._model, "cache") else "past_key_values"] = self._cache  # architectures differ in the name
        if accepts(self._model, "position_ids"):
            inputs["position_ids"] = positions
        if accepts(self._model, "logits_to_keep"):
            inputs["logits_to_keep"] = 1
        return self._model(**inputs).logits[:, -1]


def accepts(model: torch.nn.Module, argument: str) -> bool:
    """Whether the model's forward takes an argument of this name; transformers' architectures differ in it."""
    return argument in inspect.signature(model.forward).parameters


def require_cache(model: PreTrainedModel) -> None:
    """Raises BaseError for recurrent states and for models without a cache: left padding and repeated rows would be wrong there."""
    takes_cache = accepts(model, "cache") or accepts(model, "past_key_values")
    if model._is_stateful or not takes_cache or not model._supports_default_dynamic_cache():
        raise BaseError(
            f"base.model: {model.config.model_type} does not decode with a plain cache of keys and values, so completions cannot be "
            "sampled from it; name a transformer that does"
        )


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

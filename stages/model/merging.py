"""Merged checkpoints: an adapter's update is added to the base's weights in float32, once, and rounded to the base's precision.

What that rounding changes is measured on the checkpoint's own numbers, against the adapter unmerged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from stages.core.errors import BaseError
from stages.files.artifacts import FACTOR, HEAD, Artifact
from stages.model import checkpoint
from stages.model.adapters import Adapters
from stages.model.checkpoint import Found
from stages.model.groups import Completed
from stages.model.padded import PaddedPasses
from stages.model.reward_model import RewardModel

PROBE = 48
"""Tokens of the row that the difference is measured on."""


class Merged(NamedTuple):
    """A merged checkpoint that was written."""

    folder: Path
    largest_difference: float
    """Of its logits, or its score, from the adapter's on the probe."""


@torch.no_grad()
def write_policy(found: Found, model: PreTrainedModel, policy: Artifact, folder: Path) -> Merged:
    """Writes the base with the policy in its weights; the model is as it was afterwards."""
    row = torch.tensor([_probe(model)], device=model.device)
    with _adapted(model, policy) as _:
        expected = model(input_ids=row, use_cache=False).logits.float()
    with _folded(model, policy):
        merged = model(input_ids=row, use_cache=False).logits.float()
        checkpoint.save(model, found.tokenizer, folder)
    return Merged(folder, float((merged - expected).abs().max()))


@torch.no_grad()
def write_reward(found: Found, model: PreTrainedModel, reward: Artifact, folder: Path) -> Merged:
    """Writes the base with the reward model's adapter in its weights and its head, as a sequence classifier with one label.

    Raises BaseError where transformers has no such classifier for the architecture.
    """
    row = _probe(model)
    with _adapted(model, reward) as adapters:
        expected = RewardModel(adapters, nn.Parameter(torch.from_numpy(reward.tensors[HEAD]).to(model.device)), "merged").scores(
            [Completed(row[:1], [row[1:]])]
        )
    with _folded(model, reward):
        classifier = _classifier(model, reward, pad_token(found))
        score = classifier(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits.float()
        checkpoint.save(classifier, found.tokenizer, folder)
    return Merged(folder, float((score[0] - expected).abs().max()))


def pad_token(found: Found) -> int | None:
    """The token that a classifier is to take for padding, which it passes over: none that ends a completion, where the score is read."""
    tokenizer = found.tokenizer
    known = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, *sorted(tokenizer.all_special_ids))
    return next((token for token in known if token is not None and token not in found.base.end_tokens), None)


def _classifier(model: PreTrainedModel, reward: Artifact, pad: int | None) -> PreTrainedModel:
    """A classifier that shares the model's own modules below its head."""
    config = type(model.config).from_dict({**model.config.to_dict(), "num_labels": 1, "pad_token_id": pad})
    try:
        classifier: Any = AutoModelForSequenceClassification.from_config(config, dtype=model.dtype)
    except ValueError as error:
        raise BaseError(
            f"export.merged: transformers has no sequence classifier for {model.config.model_type}, so the reward model cannot be "
            "merged; set it to false"
        ) from error
    setattr(classifier, classifier.base_model_prefix, getattr(model, model.base_model_prefix))
    classifier.score.weight = nn.Parameter(torch.from_numpy(reward.tensors[HEAD]).to(model.device, model.dtype), requires_grad=False)
    found: PreTrainedModel = classifier.eval()
    return found


@contextmanager
def _adapted(model: PreTrainedModel, artifact: Artifact) -> Iterator[Adapters]:
    """The artifact's adapter unmerged, as the pipeline computes with it, while the block runs."""
    adapters = Adapters(PaddedPasses(model))
    adapters.add_trained("merged", artifact.rank, artifact.alpha, artifact.tensors)
    try:
        yield adapters
    finally:
        adapters.take_out()


@contextmanager
def _folded(model: PreTrainedModel, artifact: Artifact) -> Iterator[None]:
    """The update in the weights while the block runs; then they are what they were, bitwise."""
    modules = {factor["module"] for factor in map(FACTOR.fullmatch, artifact.tensors) if factor}
    before: list[tuple[Tensor, Tensor]] = []
    for module in sorted(modules):
        layer = model.get_submodule(module)
        weight = layer.weight
        assert isinstance(weight, Tensor)
        first, second = (torch.from_numpy(artifact.tensors[f"base_model.model.{module}.lora_{side}.weight"]) for side in "AB")
        update = (second @ first * (artifact.alpha / artifact.rank)).to(weight.device)
        before.append((weight, weight.detach().clone()))
        weight.copy_(weight.float() + (update.T if isinstance(layer, Conv1D) else update))
    try:
        yield
    finally:
        for weight, kept in before:
            weight.copy_(kept)


def _probe(model: PreTrainedModel) -> list[int]:
    """A row of unlike tokens from all over the vocabulary."""
    text = model.config.get_text_config(decoder=True)
    most = getattr(text, "max_position_embeddings", None) or PROBE
    return [7919 * place % text.vocab_size for place in range(1, min(PROBE, most) + 1)]

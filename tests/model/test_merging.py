"""Merging: the update in the weights gives what the adapter gives beside them, is rounded once, and leaves the base as it was."""

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from stages.core.errors import BaseError
from stages.files.artifacts import ADAPTER, HEAD, REWARD, Artifact
from stages.model import adapters, checkpoint, merging
from stages.model.checkpoint import DTYPES, Found
from stages.model.groups import Completed
from stages.model.reward_model import RewardModel
from tests import tiny

ROW = tiny.ids("the child drops a cup over")


def trained(model, kind: str, scale: float) -> Artifact:
    """An artifact of every linear module of layer 1, whose update is not small."""
    plan = adapters.plan(model, "grpo", 4, 6.0, "all-linear", [1])
    adapted = tiny.adapted(model)
    factors = adapted.add_fresh("policy", plan, seed=0)
    generator = torch.Generator().manual_seed(1)
    tensors = {name: (scale * torch.randn(factor.shape, generator=generator)).numpy() for name, factor in factors.items()}
    adapted.take_out()
    if kind == REWARD:
        tensors[HEAD] = torch.randn(1, 32, generator=generator).numpy()
    return Artifact(kind, "tiny", None, "f" * 64, 4, 6.0, plan.targets, plan.layers, 32, {}, tensors)


def based(tmp_path: Path, kind: str, precision: str = "f32"):
    """A base on disk, found and loaded."""
    record = dataclasses.replace(tiny.record(tiny.save(tmp_path / "base", tiny.model(kind))), precision=precision)
    found = checkpoint.find(record)
    return found, checkpoint.load_weights(found, torch.device("cpu"))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_merged_policy_gives_the_adapters_logits_and_the_base_is_bitwise_what_it_was(tmp_path: Path, kind: str):
    found, model = based(tmp_path, kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    policy = trained(model, ADAPTER, 0.3)
    merged = merging.write_policy(found, model, policy, tmp_path / "merged")
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    adapted = tiny.adapted(model)
    adapted.add_trained("policy", policy.rank, policy.alpha, policy.tensors)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        ours, theirs = model(torch.tensor([ROW])).logits, loaded(torch.tensor([ROW])).logits
        adapted.use(None)
        plain = model(torch.tensor([ROW])).logits
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)
    assert (ours - plain).abs().max() > 0.1
    assert merged.largest_difference < 1e-4


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_merged_reward_model_gives_the_same_scores(tmp_path: Path, kind: str):
    found, model = based(tmp_path, kind)
    reward = trained(model, REWARD, 0.3)
    merged = merging.write_reward(found, model, reward, tmp_path / "merged")
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    reward_model = RewardModel.trained(tiny.adapted(model), reward)
    with torch.no_grad(), reward_model.adapters.using("reward", then=None):
        rows = [ROW, ROW[:4], ROW[1:]]
        ours = torch.cat([reward_model.scores([Completed(row[:1], [row[1:]])]) for row in rows])
        theirs = torch.cat([classifier(torch.tensor([row])).logits[0] for row in rows])
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)
    assert merged.largest_difference < 1e-4
    assert len(set(ours.tolist())) == 3


def test_in_half_precision_the_update_is_added_in_float32_and_rounded_once_and_the_difference_is_told(tmp_path: Path):
    found, model = based(tmp_path, "llama", "bf16")
    policy = trained(model, ADAPTER, 0.02)
    merged = merging.write_policy(found, model, policy, tmp_path / "merged")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert loaded.dtype == DTYPES["bf16"]
    for name, tensor in policy.tensors.items():
        if ".lora_A." in name:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            second = torch.from_numpy(policy.tensors[name.replace("lora_A", "lora_B")])
            exact = model.get_submodule(module).weight.float() + 6.0 / 4 * (second @ torch.from_numpy(tensor))
            assert torch.equal(loaded.get_submodule(module).weight, exact.to(torch.bfloat16))
    assert 1e-4 < merged.largest_difference < 0.5


def test_an_architecture_without_a_classifier_is_refused_by_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found, model = based(tmp_path, "llama")
    reward = trained(model, REWARD, 0.3)

    def none(*_, **__):
        raise ValueError("Unrecognized configuration class")

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_config", none)
    with pytest.raises(BaseError, match=r"^export\.merged: transformers has no sequence classifier for llama, so the reward model cannot"):
        merging.write_reward(found, model, reward, tmp_path / "merged")


def test_what_a_classifier_takes_for_padding_ends_no_completion(tmp_path: Path):
    found, _ = based(tmp_path, "llama")
    for ends in ([tiny.IDS[tiny.END]], [found.tokenizer.unk_token_id], list(range(20))):
        pad = merging.pad_token(Found(found.folder, dataclasses.replace(found.base, end_tokens=ends), found.tokenizer))
        assert pad not in ends

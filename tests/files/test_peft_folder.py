"""The policy as a PEFT folder: what a plain PeftModel loads computes what the pipeline's own adapter does."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from stages.files import peft_folder
from stages.files.artifacts import ADAPTER, HEAD, REWARD, Artifact
from stages.model import adapters
from stages.model.groups import Completed
from stages.model.reward_model import RewardModel
from tests import tiny

ROW = tiny.ids("the child drops a cup over")


def logits(model: PreTrainedModel | PeftModel) -> Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ROW])).logits


def trained(folder: Path) -> tuple[Artifact, Tensor]:
    """A policy of every linear module of layer 1 over the base in the folder, and the logits with it on."""
    record = tiny.record(folder)
    model = tiny.load(record).model
    plan = adapters.plan(model, "grpo", 4, 6.0, "all-linear", [1])
    factors = tiny.adapted(model).add_fresh("policy", plan, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for factor in factors.values():
            factor.copy_(0.3 * torch.randn(factor.shape, generator=generator))
    tensors = adapters.to_numpy(factors)
    return Artifact(ADAPTER, record.model, None, record.fingerprint, 4, 6.0, plan.targets, plan.layers, 32, {}, tensors), logits(model)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's own use of transformers
@pytest.mark.parametrize(
    "kind",
    [
        "llama",
        # PEFT mends this entry of the configuration for GPT-2's modules itself, and says so
        pytest.param("gpt2", marks=pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")),
    ],
)
def test_peft_loads_the_folder_and_computes_the_same_logits(tmp_path: Path, kind: str):
    base = tiny.save(tmp_path / "base", tiny.model(kind))
    policy, expected = trained(base)
    folder = peft_folder.write_policy(tmp_path / "policy", policy, tiny.record(base))
    plain = AutoModelForCausalLM.from_pretrained(base)
    before = logits(plain)
    loaded = PeftModel.from_pretrained(plain, folder)
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before, expected)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's own use of transformers
@pytest.mark.parametrize(
    "kind", ["llama", pytest.param("gpt2", marks=pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning"))]
)
def test_peft_loads_the_reward_model_as_a_classifier_of_one_label_and_scores_the_same(tmp_path: Path, kind: str):
    base = tiny.save(tmp_path / "base", tiny.model(kind))
    policy, _ = trained(base)
    head = torch.randn(1, 32, generator=torch.Generator().manual_seed(2)).numpy()
    reward = Artifact(**{**vars(policy), "kind": REWARD, "tensors": {**policy.tensors, HEAD: head}})
    folder = peft_folder.write_reward(tmp_path / "reward", reward, tiny.record(base))
    loaded = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base, num_labels=1), folder).eval()
    reward_model = RewardModel.trained(tiny.adapted(tiny.load(tiny.record(base)).model), reward)
    with torch.no_grad(), reward_model.adapters.using("reward", then=None):
        for row in (ROW, ROW[:3]):
            ours = reward_model.scores([Completed(row[:1], [row[1:]])])
            torch.testing.assert_close(loaded(torch.tensor([row])).logits[0], ours, rtol=0, atol=1e-4)
    stored = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    assert stored.keys() == {*policy.tensors, "base_model.model.score.weight"}


def test_the_factors_are_the_artifacts_and_the_configuration_names_the_base(tmp_path: Path):
    base = tiny.save(tmp_path / "base")
    policy, _ = trained(base)
    folder = peft_folder.write_policy(tmp_path / "policy", policy, tiny.record(base))
    stored = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    assert {name: value.numpy().tobytes() for name, value in stored.items()} == {
        name: value.tobytes() for name, value in policy.tensors.items()
    }
    config = json.loads((folder / "adapter_config.json").read_bytes())
    assert config["base_model_name_or_path"] == base.as_posix()
    assert (config["peft_type"], config["task_type"], config["r"], config["lora_alpha"], config["lora_dropout"]) == (
        "LORA",
        "CAUSAL_LM",
        4,
        6.0,
        0.0,
    )
    assert config["target_modules"] == sorted(
        f"model.layers.1.{name}"
        for name in (*(f"self_attn.{side}_proj" for side in "qkvo"), *(f"mlp.{side}_proj" for side in ("gate", "up", "down")))
    )
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]


def test_writing_twice_gives_the_same_bytes(tmp_path: Path):
    base = tiny.save(tmp_path / "base")
    policy, _ = trained(base)
    first, second = (peft_folder.write_policy(tmp_path / name, policy, tiny.record(base)) for name in ("first", "second"))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    reordered = Artifact(**{**vars(policy), "tensors": dict(reversed(policy.tensors.items()))})
    third = peft_folder.write_policy(tmp_path / "third", reordered, tiny.record(base))
    assert (third / "adapter_config.json").read_bytes() == (first / "adapter_config.json").read_bytes()

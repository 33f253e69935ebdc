"""The export stage: a PEFT folder that peft and transformers load, and what it refuses."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.core import layout
from stages.core.errors import ArtifactError
from stages.files import artifacts, base_record, outputs
from stages.model.groups import Completed
from stages.model.reward_model import RewardModel
from tests import tiny
from tests.stage_settings import run, written

pytestmark = pytest.mark.slow

POLICY = layout.EXPORT / "policy"
OF_PEFT = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's own use of transformers


def test_the_document_names_the_folders_and_nothing_else_is_written(trained_project: Path):
    before = written()
    document = run("export")
    fingerprint = base_record.read_base().fingerprint
    folders = {"policy": "artifacts/export/policy", "reward": "artifacts/export/reward"}
    assert (document.path, document.report) == (Path("artifacts/export"), {"base_fingerprint": fingerprint, **folders})
    assert json.loads((layout.EXPORT / "export.json").read_text()) == document.report
    after = written()
    assert {path: after[path] for path in before} == before
    files = ("README.md", "adapter_config.json", "adapter_model.safetensors")
    assert set(after) - set(before) == {
        "artifacts/export/export.json",
        *(f"{folder}/{name}" for folder in folders.values() for name in files),
    }


def test_two_exports_give_the_same_bytes(trained_project: Path):
    run("export", merged=True)
    first = written()
    assert str(trained_project).encode() not in b"".join(first.values())
    run("export", merged=True)
    assert written() == first
    run("export")
    assert not [path for path in written() if "merged" in path]


def test_the_factors_are_the_artifacts_and_the_configuration_says_where_they_belong(trained_project: Path):
    run("export")
    ours = artifacts.read(layout.POLICY, artifacts.ADAPTER)
    exported = load_file(POLICY / "adapter_model.safetensors")
    assert {name: tensor.numpy().tobytes() for name, tensor in exported.items()} == {
        name: tensor.tobytes() for name, tensor in ours.tensors.items()
    }
    config = json.loads((POLICY / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"], config["base_model_name_or_path"]) == (
        8,
        16,
        "CAUSAL_LM",
        "artifacts/base/checkpoint",
    )


@OF_PEFT
def test_peft_loads_it_and_computes_what_the_policy_computes(trained_project: Path):
    run("export")
    base = AutoModelForCausalLM.from_pretrained(layout.BASE_CHECKPOINT)
    ids = AutoTokenizer.from_pretrained(layout.BASE_CHECKPOINT)("the guest drops the plate.", return_tensors="pt").input_ids
    with torch.no_grad():
        plain = base(ids).logits
        theirs = PeftModel.from_pretrained(base, POLICY)(ids).logits
        model, _ = tiny.load(base_record.read_base())
        policy = artifacts.read(layout.POLICY, artifacts.ADAPTER)
        tiny.adapted(model).add_trained("policy", policy.rank, policy.alpha, policy.tensors)
        ours = model(ids).logits
    torch.testing.assert_close(theirs, ours)
    assert not torch.allclose(theirs, plain)


@pytest.mark.parametrize("path", [layout.POLICY, layout.REWARD])
def test_an_artifact_of_another_base_is_refused_and_the_earlier_export_stays(trained_project: Path, path: Path):
    run("export")
    before = written()
    kind = artifacts.ADAPTER if path == layout.POLICY else artifacts.REWARD
    artifacts.write(path, dataclasses.replace(artifacts.read(path, kind), base_fingerprint="0" * 64))
    with pytest.raises(ArtifactError, match=rf"^{path}: adapter was trained for model toy \(0{{12}}\), current model is toy"):
        run("export")
    assert all(written()[name] == before[name] for name in before if "export" in name)


# In a new process, by plain transformers and peft

PROGRAM = """
import json, sys, torch
from pathlib import Path
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
base, rows = "artifacts/base/checkpoint", json.loads(sys.argv[1])
models = {
    "policy": PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), "artifacts/export/policy"),
    "reward": PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base, num_labels=1), "artifacts/export/reward"),
    "merged_policy": AutoModelForCausalLM.from_pretrained("artifacts/export/merged_policy"),
    "merged_reward": AutoModelForSequenceClassification.from_pretrained("artifacts/export/merged_reward"),
}
with torch.no_grad():
    found = {name: [model.eval()(torch.tensor([row])).logits.flatten().tolist() for row in rows] for name, model in models.items()}
    options = {"input_ids": torch.tensor([rows[0]]), "max_new_tokens": 8, "do_sample": False}
    found["greedy"] = [models[name].generate(**options).tolist() for name in ("policy", "merged_policy")]
found["labels"] = models["merged_reward"].config.num_labels
found["text"] = AutoTokenizer.from_pretrained("artifacts/export/merged_policy").decode(rows[0])
json.dump(found, sys.stdout)
"""


@pytest.fixture
def reloaded(trained_project: Path) -> dict[str, Any]:
    """What the exported folders compute in a new process, and in this one the pipeline's own passes."""
    document = run("export", merged=True)
    base = base_record.read_base()
    model, tokenizer = tiny.load(base)
    rows = [tokenizer(text).input_ids for text in ("the guest drops the plate.", "please wait .", "the child")]
    done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(rows)], capture_output=True, text=True, check=True)
    adapted = tiny.adapted(model)
    policy = artifacts.read(layout.POLICY, artifacts.ADAPTER)
    adapted.add_trained("policy", policy.rank, policy.alpha, policy.tensors)
    reward_model = RewardModel.trained(adapted, artifacts.read(layout.REWARD, artifacts.REWARD))
    with torch.no_grad():
        adapted.use("policy")
        logits = [model(torch.tensor([row])).logits.flatten().tolist() for row in rows]
        adapted.use("reward")
        scores = [reward_model.scores([Completed(row[:1], [row[1:]])]).tolist() for row in rows]
    return {**json.loads(done.stdout), "ours": {"policy": logits, "reward": scores}, "report": document.report, "rows": rows}


def test_every_exported_folder_gives_the_pipelines_own_numbers_in_a_new_process(reloaded: dict[str, Any]):
    for name in ("policy", "reward"):
        for folder in (name, f"merged_{name}"):
            for theirs, ours in zip(reloaded[folder], reloaded["ours"][name], strict=True):
                assert theirs == pytest.approx(ours, abs=1e-4), folder
    assert len({score for (score,) in reloaded["reward"]}) == 3
    assert reloaded["greedy"][0] == reloaded["greedy"][1]
    assert reloaded["labels"] == 1
    assert reloaded["text"].endswith("the guest drops the plate.")
    report = reloaded["report"]
    assert report["precision"] == "f32"
    assert all(report[f"merged_{name}"]["largest_difference"] < 1e-4 for name in ("policy", "reward"))


def test_the_merged_checkpoint_keeps_tied_embeddings_dtype_tokenizer_and_ends(trained_project: Path):
    run("export", merged=True)
    folder = layout.EXPORT / "merged_policy"
    base, merged = (AutoModelForCausalLM.from_pretrained(path) for path in (layout.BASE_CHECKPOINT, folder))
    tied = base.config.tie_word_embeddings
    assert merged.config.tie_word_embeddings == tied
    assert (merged.lm_head.weight is merged.model.embed_tokens.weight) == tied
    assert (merged.dtype, merged.config.eos_token_id) == (base.dtype, base.config.eos_token_id)
    assert torch.equal(merged.model.embed_tokens.weight, base.model.embed_tokens.weight)
    assert (folder / "tokenizer.json").read_bytes() == (layout.BASE_CHECKPOINT / "tokenizer.json").read_bytes()
    changed = [name for name, weight in base.named_parameters() if not torch.equal(weight, merged.get_parameter(name))]
    policy = artifacts.read(layout.POLICY, artifacts.ADAPTER)
    assert {f"base_model.model.{name.removesuffix('.weight')}" for name in changed} == {
        name.partition(".lora_")[0] for name in policy.tensors
    }


def test_a_merged_checkpoint_is_not_taken_for_the_base_that_it_was_merged_into(trained_project: Path):
    """Merging twice is impossible: an artifact names its base by the digest of the weights."""
    run("export", merged=True)
    record = base_record.read_base()
    other = tiny.record(layout.EXPORT / "merged_policy")
    assert other.fingerprint != record.fingerprint
    outputs.write_json(layout.BASE_RECORD, other.as_json())
    with pytest.raises(ArtifactError, match="adapter was trained for model"):
        run("export", merged=True)


def test_each_folder_has_a_card_that_says_what_it_is_and_how_it_loads(trained_project: Path):
    run("export", merged=True)
    for folder, words in {
        "policy": ("library_name: peft", "base_model: artifacts/base/checkpoint", "PeftModel.from_pretrained(base", "max_new_tokens"),
        "reward": ("num_labels=1", "Bradley-Terry", "pad_token_id"),
        "merged_policy": ("library_name: transformers", "merged in float32 and stored in f32", 'from_pretrained(".")'),
        "merged_reward": ("text-classification", "`pad_token_id` is "),
    }.items():
        card = (layout.EXPORT / folder / "README.md").read_text()
        assert all(word in card for word in words if word != "max_new_tokens"), (folder, card)
        assert base_record.read_base().fingerprint in card


# TRL

TRL_WARNINGS = pytest.mark.filterwarnings("ignore")
"""Of what TRL and its trainer import and set."""


@TRL_WARNINGS
def test_trls_grpo_trainer_takes_the_exported_reward_model_for_a_step(trained_project: Path, tmp_path: Path):
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification
    from trl import GRPOConfig, GRPOTrainer

    run("export")
    tokenizer = AutoTokenizer.from_pretrained(layout.BASE_CHECKPOINT)
    tokenizer.pad_token = tokenizer.unk_token
    classifier = AutoModelForSequenceClassification.from_pretrained(layout.BASE_CHECKPOINT, num_labels=1)
    classifier.config.pad_token_id = tokenizer.pad_token_id
    reward = PeftModel.from_pretrained(classifier, layout.EXPORT / "reward").eval()
    arguments = {"use_cpu": True, "bf16": False, "report_to": [], "per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 1}
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(layout.BASE_CHECKPOINT),
        reward_funcs=reward,
        args=GRPOConfig(output_dir=str(tmp_path / "trl"), max_completion_length=6, logging_steps=1, **arguments),
        train_dataset=Dataset.from_list([{"prompt": "the guest drops the plate."}] * 4),
        processing_class=tokenizer,
        reward_processing_classes=tokenizer,
    )
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert len(rewards) == 1
    assert math.isfinite(rewards[0])
    assert trainer.state.log_history[0]["reward_std"] > 0

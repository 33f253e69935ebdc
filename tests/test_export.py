"""The export stage: a PEFT folder that peft and transformers load, and what it refuses."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.core import layout
from stages.core.errors import ArtifactError
from stages.files import artifacts, base_record
from tests import tiny
from tests.stage_settings import run, written

pytestmark = pytest.mark.slow

POLICY = layout.EXPORT / "policy"
OF_PEFT = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's own use of transformers


def test_the_document_names_the_folders_and_nothing_else_is_written(trained_project: Path):
    before = written()
    document = run("export")
    assert (document.path, document.report) == (Path("artifacts/export"), {"policy": "artifacts/export/policy"})
    after = written()
    assert {path: after[path] for path in before} == before
    assert set(after) - set(before) == {f"artifacts/export/policy/{name}" for name in ("adapter_config.json", "adapter_model.safetensors")}


def test_two_exports_give_the_same_bytes(trained_project: Path):
    run("export")
    first = written()
    run("export")
    assert written() == first


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

"""Artifacts: what is written and read back, and each way in which a file is none."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import safe_open

from stages.core import layout
from stages.core.errors import ArtifactError
from stages.files import artifacts, outputs
from stages.files.artifacts import ADAPTER, HEAD, REWARD, Artifact
from tests import tiny

QUERY_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
QUERY_B = QUERY_A.replace("lora_A", "lora_B")
HIDDEN = 4


def tensors(kind: str = ADAPTER) -> dict[str, Any]:
    """Rank 2 on one module of width 4 to 6, and a head."""
    factors = {QUERY_A: np.arange(8, dtype=np.float32).reshape(2, 4), QUERY_B: np.arange(12, dtype=np.float32).reshape(6, 2)}
    return factors | ({HEAD: np.array([[0.5, -1, 0, 2]], np.float32)} if kind == REWARD else {})


def artifact(kind: str = ADAPTER, **changes: Any) -> Artifact:
    whole = Artifact(
        kind=kind,
        model="toy",
        model_revision=None,
        base_fingerprint="f" * 64,
        rank=2,
        alpha=4.0,
        targets=["q_proj"],
        layers=[0],
        hidden_size=HIDDEN,
        report={"reward": "length", "mean_reward": 0.1},
        tensors=tensors(kind),
    )
    return dataclasses.replace(whole, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "policy.safetensors"


def resign(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the sidecar as someone would who knows how its digest is made."""
    sidecar = json.loads(path.with_suffix(".json").read_text())
    change(sidecar)
    sidecar["digest"] = outputs.digest(sidecar)
    path.with_suffix(".json").write_text(json.dumps(sidecar))


def reweigh(path: Path, content: bytes) -> None:
    """Puts other weights under a sidecar that vouches for them."""
    path.write_bytes(content)
    resign(path, lambda sidecar: sidecar.update(weights_sha256=hashlib.sha256(content).hexdigest()))


def refusal(path: Path, kind: str = ADAPTER) -> str:
    with pytest.raises(ArtifactError) as caught:
        artifacts.read(path, kind)
    (line,) = caught.value.lines()
    return line


@pytest.mark.parametrize("kind", [ADAPTER, REWARD])
def test_an_artifact_comes_back_as_it_was_written(path: Path, kind: str):
    whole = artifact(kind)
    artifacts.write(path, whole)
    found = artifacts.read(path, kind)
    assert dataclasses.replace(found, tensors={}) == dataclasses.replace(whole, tensors={})
    assert {name: tensor.tobytes() for name, tensor in found.tensors.items()} == {
        name: tensor.tobytes() for name, tensor in whole.tensors.items()
    }
    assert sorted(file.name for file in path.parent.iterdir()) == ["policy.json", "policy.safetensors"]


def test_the_weights_are_what_safetensors_reads_under_the_same_names(path: Path):
    artifacts.write(path, artifact(REWARD))
    with safe_open(path, framework="pt") as opened:
        assert set(opened.keys()) == {QUERY_A, QUERY_B, "reward.head"}
        assert opened.metadata() == {"format": "pt"}
        assert torch.equal(opened.get_tensor("reward.head"), torch.tensor([[0.5, -1, 0, 2]]))


def test_the_sidecar_has_the_documented_fields_and_a_digest_over_them(path: Path):
    artifacts.write(path, artifact(REWARD))
    sidecar = json.loads(path.with_suffix(".json").read_text())
    assert list(sidecar) == (
        "schema_version product kind model model_revision base_fingerprint rank alpha targets layers hidden_size "
        "shapes weights_sha256 report digest".split()
    )
    assert sidecar["shapes"] == {QUERY_A: [2, 4], QUERY_B: [6, 2], HEAD: [1, 4]}
    assert sidecar["weights_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", [ADAPTER, REWARD])
def test_a_second_write_gives_the_same_bytes_whatever_the_order_of_the_tensors(tmp_path: Path, kind: str):
    one, other = tmp_path / "one" / "a.safetensors", tmp_path / "other" / "a.safetensors"
    artifacts.write(one, artifact(kind))
    artifacts.write(other, artifact(kind, tensors=dict(reversed(tensors(kind).items()))))
    assert one.read_bytes() == other.read_bytes()
    assert one.with_suffix(".json").read_bytes() == other.with_suffix(".json").read_bytes()


def test_a_sidecar_without_a_kind_is_an_adapters(path: Path):
    artifacts.write(path, artifact())
    resign(path, lambda sidecar: sidecar.pop("kind"))
    assert artifacts.read(path, ADAPTER).kind == ADAPTER
    assert refusal(path, REWARD) == f"{path}: adapter artifact is a generation adapter, not a reward model"


@pytest.mark.parametrize(
    ("written", "wanted", "phrase"),
    [
        (ADAPTER, REWARD, "adapter artifact is a generation adapter, not a reward model"),
        (REWARD, ADAPTER, "adapter artifact is a reward model, not a generation adapter"),
    ],
)
def test_the_other_kind_is_refused_in_both_directions(path: Path, written: str, wanted: str, phrase: str):
    artifacts.write(path, artifact(written))
    assert refusal(path, wanted) == f"{path}: {phrase}"


def without(name: str, kind: str = ADAPTER) -> dict[str, Any]:
    return {key: tensor for key, tensor in tensors(kind).items() if key != name}


OTHER_B = QUERY_B.replace("q_proj", "v_proj")
BROKEN_TENSORS = [
    (REWARD, without(HEAD, REWARD), "reward artifact is missing tensor reward.head"),
    (ADAPTER, tensors(REWARD), "adapter artifact carries a reward.head tensor but declares kind adapter"),
    (ADAPTER, without(QUERY_B), f"tensor {QUERY_B} is missing"),
    (ADAPTER, without(QUERY_A), f"tensor {QUERY_A} is missing"),
    (ADAPTER, {**tensors(), OTHER_B: tensors()[QUERY_B]}, f"tensor {OTHER_B.replace('lora_B', 'lora_A')} is missing"),
    (ADAPTER, {}, "it holds no LoRA factors"),
    (REWARD, {HEAD: tensors(REWARD)[HEAD]}, "it holds no LoRA factors"),
    (ADAPTER, {**tensors(), "lm_head.weight": np.zeros((2, 2), np.float32)}, "tensor lm_head.weight is no LoRA factor (expected "),
    (ADAPTER, {**tensors(), QUERY_A: np.zeros((3, 4), np.float32)}, f"tensor {QUERY_A} has shape [3, 4], which is not of rank 2"),
    (ADAPTER, {**tensors(), QUERY_B: np.zeros((2, 6), np.float32)}, f"tensor {QUERY_B} has shape [2, 6], which is not of rank 2"),
    (ADAPTER, {**tensors(), QUERY_A: np.zeros(2, np.float32)}, f"tensor {QUERY_A} has shape [2], which is not of rank 2"),
    (REWARD, {**tensors(REWARD), HEAD: np.zeros((1, 5), np.float32)}, "tensor reward.head has shape [1, 5], expected [1, 4]"),
    (REWARD, {**tensors(REWARD), HEAD: np.zeros(4, np.float32)}, "tensor reward.head has shape [4], expected [1, 4]"),
    (ADAPTER, {**tensors(), QUERY_A: np.zeros((2, 4), np.float16)}, f"tensor {QUERY_A} is float16, expected float32"),
    (ADAPTER, {**tensors(), QUERY_A: np.zeros((2, 4), np.float64)}, f"tensor {QUERY_A} is float64, expected float32"),
    (ADAPTER, {**tensors(), QUERY_B: np.full((6, 2), np.nan, np.float32)}, f"tensor {QUERY_B} holds numbers that are not finite"),
    (REWARD, {**tensors(REWARD), HEAD: np.array([[0, np.inf, 0, 0]], np.float32)}, "tensor reward.head holds numbers that are not finite"),
]


@pytest.mark.parametrize(("kind", "broken", "phrase"), BROKEN_TENSORS)
def test_tensors_that_are_no_artifact_are_neither_written_nor_read(path: Path, kind: str, broken: dict[str, Any], phrase: str):
    with pytest.raises(ArtifactError) as caught:
        artifacts.write(path, artifact(kind, tensors=broken))
    assert any(line.startswith(f"{path}: not written: {phrase}") for line in caught.value.lines())
    assert not path.parent.exists()

    artifacts.write(path, artifact(kind))
    reweigh(path, safetensors.numpy.save(broken))
    with pytest.raises(ArtifactError) as caught:
        artifacts.read(path, kind)
    assert any(line.startswith(f"{path}: {phrase}") for line in caught.value.lines())


def test_a_write_that_is_refused_leaves_the_earlier_artifact(path: Path):
    artifacts.write(path, artifact())
    before = [file.read_bytes() for file in sorted(path.parent.iterdir())]
    with pytest.raises(ArtifactError):
        artifacts.write(path, artifact(tensors=without(QUERY_B)))
    assert [file.read_bytes() for file in sorted(path.parent.iterdir())] == before


def test_all_that_is_wrong_with_the_tensors_is_told_at_once(path: Path):
    broken = {QUERY_A: np.zeros((3, 4), np.float16), HEAD: np.zeros((1, 4), np.float32)}
    with pytest.raises(ArtifactError) as caught:
        artifacts.write(path, artifact(tensors=broken))
    # the head, the rank of A, the missing B, the type of A
    assert len(caught.value.lines()) == 4


def test_a_report_with_a_number_that_is_not_finite_is_not_written_at_all(path: Path):
    with pytest.raises(ValueError, match="Out of range float"):
        artifacts.write(path, artifact(report={"mean_reward": float("nan")}))
    assert not path.parent.exists()


def test_a_write_that_fails_leaves_the_earlier_artifact_whole_and_nothing_beside_it(path: Path, monkeypatch: pytest.MonkeyPatch):
    artifacts.write(path, artifact())
    before = [file.read_bytes() for file in sorted(path.parent.iterdir())]

    def full(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        artifacts.write(path, artifact(alpha=8.0, tensors={name: tensor + 1 for name, tensor in tensors().items()}))
    assert [file.read_bytes() for file in sorted(path.parent.iterdir())] == before


def test_weights_beside_the_sidecar_of_other_weights_are_refused(path: Path):
    artifacts.write(path, artifact())
    path.write_bytes(safetensors.numpy.save({name: tensor + 1 for name, tensor in tensors().items()}))
    assert refusal(path) == f"{path}: its weights are not the ones that policy.json was written for"


@pytest.mark.parametrize("kept", [0, 7, 8, 100, -1])
def test_a_truncated_file_is_no_safetensors_file(path: Path, kept: int):
    artifacts.write(path, artifact())
    path.write_bytes(path.read_bytes()[:kept])
    assert refusal(path).startswith(f"{path}: not a safetensors file (")
    assert refusal(path).endswith(f"bring it back with `dvc checkout {path.parent}`")


def test_a_pickle_is_no_safetensors_file(path: Path):
    artifacts.write(path, artifact())
    torch.save({QUERY_A: torch.zeros(2, 4)}, path)
    assert refusal(path).startswith(f"{path}: not a safetensors file (")


def test_bfloat16_factors_are_refused(path: Path):
    artifacts.write(path, artifact())
    reweigh(path, safetensors.torch.save({name: torch.from_numpy(tensor).bfloat16() for name, tensor in tensors().items()}))
    assert refusal(path) == f"{path}: it holds BF16 tensors, expected float32"


def test_a_weight_file_without_its_sidecar_and_a_sidecar_alone_are_refused_with_what_to_run(path: Path):
    artifacts.write(path, artifact())
    cure = f"no such artifact; run `dvc repro`, or bring it back with `dvc checkout {path.parent}`"
    content = path.read_bytes()
    path.unlink()
    assert refusal(path) == f"{path}: {cure}"
    path.write_bytes(content)
    path.with_suffix(".json").unlink()
    assert refusal(path) == f"{path.with_suffix('.json')}: {cure}"


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b"", "not a sidecar: Expecting value"),
        (b"{", "not a sidecar: Expecting property name"),
        (b"\xff\xfe", "not a sidecar: "),
        (b"[1]", "not a sidecar: expected an object"),
        (b"null", "not a sidecar: expected an object"),
        (b"{}", "not a sidecar of this product and version (expected leash, schema_version 1)"),
        (b"[" * 100_000, "not a sidecar: maximum recursion depth exceeded"),
        (b"9" * 5000, "not a sidecar: Exceeds the limit"),
    ],
)
def test_a_file_that_is_no_sidecar_is_refused(path: Path, content: bytes, phrase: str):
    artifacts.write(path, artifact())
    path.with_suffix(".json").write_bytes(content)
    assert refusal(path).startswith(f"{path.with_suffix('.json')}: {phrase}")


@pytest.mark.parametrize("depth", [100, 500, 900, 990, 10_000])
def test_a_sidecar_nested_to_any_depth_is_refused_in_one_line(path: Path, depth: int):
    artifacts.write(path, artifact())
    nested = '{"schema_version": 1, "product": "leash", "report": %s}' % ("[" * depth + "]" * depth)
    path.with_suffix(".json").write_text(nested)
    assert refusal(path).startswith(f"{path.with_suffix('.json')}: ")


@pytest.mark.parametrize("change", [{"product": "other"}, {"schema_version": 2}, {"schema_version": None}, {"product": ["leash"]}])
def test_a_sidecar_of_another_product_or_version_is_refused(path: Path, change: dict[str, Any]):
    artifacts.write(path, artifact())
    resign(path, lambda sidecar: sidecar.update(change))
    assert refusal(path) == (f"{path.with_suffix('.json')}: not a sidecar of this product and version (expected leash, schema_version 1)")


@pytest.mark.parametrize("field", ["kind", "model", "base_fingerprint", "rank", "alpha", "targets", "weights_sha256", "report", "digest"])
def test_a_field_that_was_changed_after_writing_is_refused(path: Path, field: str):
    artifacts.write(path, artifact())
    sidecar = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**sidecar, field: "changed"}))
    assert refusal(path) == (
        f"{path.with_suffix('.json')}: its fields do not match their digest; the file was changed after it was written; "
        f"bring it back with `dvc checkout {path.parent}`"
    )


def test_another_layout_of_the_sidecar_is_the_same_sidecar(path: Path):
    artifacts.write(path, artifact())
    sidecar = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(dict(reversed(sidecar.items()))))
    assert artifacts.read(path, ADAPTER).rank == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "judge"),
        ("kind", None),
        ("kind", ["adapter"]),
        ("model", 1),
        ("model_revision", 1),
        ("base_fingerprint", None),
        ("rank", "2"),
        ("rank", 2.0),
        ("rank", True),
        ("rank", 0),
        ("alpha", "4"),
        ("alpha", True),
        ("alpha", 1e31),
        ("alpha", 0),
        ("targets", "q_proj"),
        ("targets", [1]),
        ("layers", "all"),
        ("layers", ["0"]),
        ("layers", [True]),
        ("hidden_size", None),
        ("hidden_size", True),
        ("report", []),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(path: Path, field: str, value: Any):
    artifacts.write(path, artifact())
    resign(path, lambda sidecar: sidecar.update({field: value}))
    assert refusal(path) == f"{path.with_suffix('.json')}: field {field} is missing or of another type"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda held: held.pop(QUERY_A), f"tensor {QUERY_A} is missing"),
        (lambda held: held.update(more=held[QUERY_A]), "tensor more is no LoRA factor (expected "),
        (
            lambda held: held.update({name.replace("layers.0", "layers.1"): tensor for name, tensor in tensors().items()}),
            f"tensor {QUERY_A.replace('layers.0', 'layers.1')} is of none of its targets (q_proj) in its layers [0] (and 1 more)",
        ),
        (lambda held: held.update({QUERY_A: held[QUERY_A][:, :3].copy()}), f"tensor {QUERY_A} has shape [2, 3], and [2, 4] in its sidecar"),
        (lambda held: held.update({QUERY_A: held[QUERY_A] + 1}), "its weights are not the ones that policy.json was written for"),
    ],
)
def test_other_tensors_than_the_sidecar_was_written_for_are_named(path: Path, change: Callable[[dict[str, Any]], Any], problem: str):
    artifacts.write(path, artifact())
    held = tensors()
    change(held)
    path.write_bytes(safetensors.numpy.save(held))
    with pytest.raises(ArtifactError) as caught:
        artifacts.read(path, ADAPTER)
    assert any(line.startswith(f"{path}: {problem}") for line in caught.value.lines())


def test_a_module_that_lost_both_its_factors_is_named(path: Path):
    both = {**tensors(), **{name.replace("layers.0", "layers.1"): tensor for name, tensor in tensors().items()}}
    artifacts.write(path, artifact(tensors=both, layers=[0, 1]))
    path.write_bytes(safetensors.numpy.save(tensors()))
    with pytest.raises(ArtifactError) as caught:
        artifacts.read(path, ADAPTER)
    other = QUERY_A.replace("layers.0", "layers.1")
    assert caught.value.lines() == [f"{path}: tensor {name} is missing" for name in (other, other.replace("lora_A", "lora_B"))]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rank": 3}, f"tensor {QUERY_A} has shape [2, 4], which is not of rank 3 (and 1 more)"),
        ({"layers": [1]}, f"tensor {QUERY_A} is of none of its targets (q_proj) in its layers [1] (and 1 more)"),
    ],
)
def test_a_field_that_is_wrong_for_every_tensor_is_one_line(path: Path, change: dict[str, Any], problem: str):
    artifacts.write(path, artifact())
    resign(path, lambda sidecar: sidecar.update(change))
    assert refusal(path) == f"{path}: {problem}"


def test_tensors_are_read_in_the_order_of_their_names(path: Path, monkeypatch: pytest.MonkeyPatch):
    """The library gives them in another order at each call, and what is told of an artifact is to be the same each time."""
    written = artifact()
    artifacts.write(path, written)
    monkeypatch.setattr(safetensors.numpy, "load", lambda content: dict(sorted(written.tensors.items(), reverse=True)))
    assert list(artifacts.read(path, ADAPTER).tensors) == sorted(written.tensors)


@pytest.mark.parametrize("field", ["rank", "alpha", "targets", "layers"])
def test_a_field_that_contradicts_the_report_is_refused(path: Path, field: str):
    """Someone who makes the digest anew has to change both."""
    fields = {"rank": 2, "alpha": 4.0, "targets": ["q_proj"], "layers": [0]}
    artifacts.write(path, artifact(report=fields))
    resign(path, lambda sidecar: sidecar["report"].update({field: "other"}))
    assert refusal(path) == f"{path}: field {field} is {fields[field]!r}, and 'other' in its report"


@pytest.mark.parametrize(
    ("old", "new", "phrase"),
    [
        ('"rank": 2', '"rank": 2, "rank": 2', "a key stands twice in one object"),
        ('"alpha": 4.0', '"alpha": NaN', "NaN is no number of JSON"),
        ('"alpha": 4.0', '"alpha": -Infinity', "-Infinity is no number of JSON"),
        ('"alpha": 4.0', '"alpha": 1e999', "1e999 is beyond what a number can be"),
    ],
)
def test_what_json_has_not_is_refused_in_a_sidecar(path: Path, old: str, new: str, phrase: str):
    artifacts.write(path, artifact())
    text = path.with_suffix(".json").read_text()
    assert old in text
    path.with_suffix(".json").write_text(text.replace(old, new))
    assert refusal(path) == f"{path.with_suffix('.json')}: not a sidecar: {phrase}; bring it back with `dvc checkout {path.parent}`"


@pytest.mark.parametrize(
    "field", ["model", "model_revision", "base_fingerprint", "rank", "alpha", "targets", "layers", "hidden_size", "report"]
)
def test_a_missing_field_is_refused_by_name(path: Path, field: str):
    artifacts.write(path, artifact())
    resign(path, lambda sidecar: sidecar.pop(field))
    assert refusal(path) == f"{path.with_suffix('.json')}: field {field} is missing or of another type"


def test_a_missing_digest_of_the_weights_is_refused(path: Path):
    artifacts.write(path, artifact())
    resign(path, lambda sidecar: sidecar.pop("weights_sha256"))
    assert refusal(path) == f"{path}: its weights are not the ones that policy.json was written for"


def test_another_base_is_refused_by_fingerprint_whatever_either_is_called():
    base = dataclasses.replace(tiny.base(tiny.tokenizer()), model="toy", fingerprint="a" * 64, hidden_size=HIDDEN)
    with pytest.raises(ArtifactError) as caught:
        artifacts.require_base(layout.POLICY, artifact(), base)
    (line,) = caught.value.lines()
    assert re.fullmatch(
        r"artifacts/grpo/policy\.safetensors: adapter was trained for model toy \(f{12}\), current model is toy \(a{12}\); train it .+",
        line,
    )
    moved = dataclasses.replace(base, model="./elsewhere", fingerprint="f" * 64)
    artifacts.require_base(layout.POLICY, artifact(), moved)


def test_a_base_of_another_width_is_told_beside_its_fingerprint():
    base = dataclasses.replace(tiny.base(tiny.tokenizer()), fingerprint="f" * 64, hidden_size=64)
    with pytest.raises(ArtifactError, match=r"^artifacts/grpo/policy\.safetensors: adapter width 4 does not match model width 64$"):
        artifacts.require_base(layout.POLICY, artifact(), base)


@pytest.mark.parametrize("ending", [".json", ".safetensors"])
def test_a_pipe_in_an_artifacts_place_is_not_waited_for(path: Path, ending: str):
    artifacts.write(path, artifact())
    path.with_suffix(ending).unlink()
    os.mkfifo(path.with_suffix(ending))
    assert refusal(path) == (
        f"{path.with_suffix(ending)}: not readable (it is no regular file); bring it back with `dvc checkout {path.parent}`"
    )

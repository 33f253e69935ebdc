"""The base stage: what it builds, finds and records, and what a refusal leaves alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from stages import base
from stages.core import layout
from stages.core.composition import named_files
from stages.core.errors import BaseError
from stages.core.settings.base import CheckpointBase, ToyBase
from stages.core.settings.runtime import Runtime
from stages.files.base_record import read_base
from stages.model import checkpoint
from tests import tiny

pytestmark = pytest.mark.slow

RUNTIME = Runtime("cpu", None, 64, False, 1, 1, 1, None, False)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def toy(seed: int = 1, fit_steps: int = 0, precision: str = "f32") -> base.Params:
    return base.Params(ToyBase(seed=seed, fit_steps=fit_steps, precision=precision, chat_template="auto"), RUNTIME)


def existing(model: str, **settings: Any) -> base.Params:
    written: dict[str, Any] = {"revision": None, "gguf_file": None, "precision": "f32", "chat_template": "auto", "trust_remote_code": False}
    return base.Params(CheckpointBase(model=model, **{**written, **settings}), RUNTIME)


def files() -> dict[str, bytes]:
    return {path.as_posix(): path.read_bytes() for path in sorted(layout.BASE.rglob("*")) if path.is_file()}


def test_the_toy_is_written_recorded_and_can_be_loaded():
    document = base.main(toy())
    record = read_base()
    assert document.path == layout.BASE_RECORD
    assert document.report == record.as_json() == json.loads(layout.BASE_RECORD.read_bytes())
    assert record.folder == "artifacts/base/checkpoint"
    assert (record.model, record.layers, record.hidden_size, record.positions) == ("toy", 4, 64, 512)
    assert (record.chat_template, record.revision, record.commit, record.gguf_file) == ("absent", None, None, None)
    model, words = tiny.load(record)
    assert record.begin_token == words.bos_token_id
    assert record.end_tokens == [words.eos_token_id]
    assert record.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert sorted(path.name for path in layout.BASE.iterdir()) == ["base.json", "checkpoint"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_base():
    base.main(toy())
    first = files()
    base.main(toy())
    assert files() == first
    fingerprint = read_base().fingerprint
    base.main(toy(seed=2))
    assert read_base().fingerprint != fingerprint


def test_the_fit_changes_the_weights_and_says_how_it_goes(capsys: pytest.CaptureFixture[str]):
    base.main(toy())
    random = read_base().fingerprint
    base.main(toy(fit_steps=2))
    assert read_base().fingerprint != random
    out, err = capsys.readouterr()
    assert out == ""
    assert "fit step 2/2 loss " in err


def test_the_precision_changes_the_record_and_not_the_base():
    base.main(toy())
    first = read_base()
    base.main(toy(precision="bf16"))
    assert (read_base().precision, read_base().fingerprint) == ("bf16", first.fingerprint)


@pytest.mark.parametrize("model", ["./models/tiny", "models/tiny"])
def test_a_folder_is_used_where_it_lies_and_takes_the_place_of_the_toys(model: str):
    base.main(toy())
    saved = tiny.save(Path("models/tiny"))
    before = {path: path.read_bytes() for path in saved.iterdir()}
    base.main(existing(model))
    record = read_base()
    assert (record.folder, record.model) == ("models/tiny", model)
    assert [path.name for path in layout.BASE.iterdir()] == ["base.json"]
    assert {path: path.read_bytes() for path in saved.iterdir()} == before
    loaded = tiny.load(record).model
    assert torch.equal(loaded.lm_head.weight, AutoModelForCausalLM.from_pretrained(saved).lm_head.weight)


@pytest.mark.parametrize("model", ["../models/tiny", "models/tiny"])
def test_in_a_checkout_elsewhere_a_relative_folder_is_the_workspaces_and_the_record_the_same(
    project: Path, monkeypatch: pytest.MonkeyPatch, model: str
):
    workspace = project / "workspace"
    (workspace / "job").mkdir(parents=True)
    monkeypatch.chdir(workspace)
    tiny.save(Path(model))
    here = base.main(existing(model)).report
    monkeypatch.chdir(workspace / "job")
    with pytest.raises(BaseError, match=r"is not a folder|neither a folder"):
        base.main(existing(model))
    monkeypatch.setenv("DVC_ROOT", str(workspace))
    assert named_files.problems({"base": existing(model).base.__dict__}) == []
    assert base.main(existing(model)).report == here
    tiny.load(read_base())
    base.main(toy())
    tiny.load(read_base())  # what the pipeline itself makes is the job's own


def test_a_folder_that_changed_is_recorded_anew_when_the_stage_runs_again():
    saved = tiny.save(Path("models/tiny"))
    base.main(existing("./models/tiny"))
    first = read_base()
    tiny.save(saved, tiny.model(seed=1))
    with pytest.raises(BaseError, match=r"has changed since it was recorded \(weights\)"):
        tiny.load(first)
    base.main(existing("./models/tiny"))
    assert read_base().weights_sha256 != first.weights_sha256
    tiny.load(read_base())


def broken_checkpoint() -> base.Params:
    saved = tiny.save(Path("models/broken"))
    (saved / "model.safetensors").write_bytes(b"\x10" * 100)
    return existing("./models/broken")


def no_gguf() -> base.Params:
    tiny.save(Path("models/tiny"))
    return existing("./models/tiny", gguf_file="absent.gguf")


@pytest.mark.parametrize(
    ("refused", "error", "start"),
    [
        (lambda: existing("./absent"), BaseError, "base.model: ./absent is not a folder"),
        (lambda: existing("package:no_such_package"), BaseError, "base.model: package no_such_package is not installed"),
        (broken_checkpoint, BaseError, "models/broken/model.safetensors: not a safetensors file ("),
        (no_gguf, BaseError, "base.model: models/tiny cannot be loaded by transformers ("),
    ],
)
def test_a_refusal_is_one_line_and_leaves_the_old_base_as_it_was(refused: Any, error: type[BaseError], start: str):
    base.main(toy())
    before = files()
    with pytest.raises(error) as caught:
        base.main(refused())
    (line,) = caught.value.lines()
    assert line.startswith(start)
    assert files() == before


def test_an_interrupted_build_leaves_the_old_base_as_it_was(monkeypatch: pytest.MonkeyPatch):
    base.main(toy())
    before = files()

    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        base.main(toy(seed=2))
    assert files() == before


@pytest.mark.parametrize("fails", ["write_json", "replace"])
def test_a_disk_that_fills_up_at_the_last_moment_leaves_the_old_base_as_it_was(fails: str, monkeypatch: pytest.MonkeyPatch):
    base.main(toy())
    before = files()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "artifacts/base")

    with monkeypatch.context() as patch:
        if fails == "write_json":
            patch.setattr(base.outputs, "write_json", full)
        else:
            patch.setattr(type(base.BUILDING), "replace", lambda path, to: full() if path == base.BUILDING else path.rename(to))
        with pytest.raises(OSError, match="No space left"):
            base.main(toy(seed=2))
    assert files() == before


def test_a_checkpoint_that_does_not_fit_the_disk_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", full)
    with pytest.raises(BaseError, match=r"^artifacts/base/\.building: the checkpoint could not be written .*free some space"):
        base.main(toy())

"""The digests of a checkpoint folder: which files count, and what in them does not."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import tensor

from stages.core.errors import BaseError
from stages.files import fingerprint

CONFIG = {"model_type": "llama", "hidden_size": 32, "transformers_version": "5.24.0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder, as far as digests go."""
    made = tmp_path / "base"
    made.mkdir()
    save_file({"weight": tensor([1.0, 2.0])}, made / "model.safetensors")
    write(made / "config.json", CONFIG)
    write(made / "tokenizer.json", {"model": {"vocab": {"a": 0, "b": 1}}})
    write(made / "tokenizer_config.json", {"eos_token": "b"})
    return made


def write(path: Path, value: Any, **layout: Any) -> None:
    path.write_text(json.dumps(value, **layout))


def digests(folder: Path, template: str | None = None) -> fingerprint.Digests:
    return fingerprint.digest_checkpoint(folder, template, code=False)


def test_moving_or_renaming_the_folder_changes_nothing(folder: Path):
    before = digests(folder)
    assert digests(folder.rename(folder.with_name("elsewhere"))) == before


@pytest.mark.parametrize("key", ["transformers_version", "_name_or_path", "dtype", "torch_dtype", "is_local"])
def test_an_entry_of_where_the_configuration_came_from_changes_nothing(folder: Path, key: str):
    before = digests(folder)
    write(folder / "config.json", {key: "another", **{name: value for name, value in CONFIG.items() if name != key}}, indent=4)
    assert digests(folder) == before


def test_the_layout_of_a_json_file_and_files_of_other_kinds_change_nothing(folder: Path):
    before = digests(folder)
    write(folder / "config.json", dict(reversed(CONFIG.items())), indent=8)
    (folder / "README.md").write_text("words")
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    assert digests(folder) == before


def test_each_part_changes_its_own_digest_alone_and_the_fingerprint(folder: Path):
    before = digests(folder, "template")
    ends = [1]

    def changed(template: str | None = "template") -> list[str]:
        now = digests(folder, template)
        assert now.fingerprint(ends) != before.fingerprint(ends)
        return [name for name, old, new in zip(fingerprint.Digests._fields, before, now, strict=True) if old != new]

    assert changed(template="template ") == ["template"]
    assert changed(template=None) == ["template"]
    write(folder / "tokenizer.json", {"model": {"vocab": {"a": 1, "b": 0}}})
    assert changed() == ["tokenizer"]
    write(folder / "tokenizer.json", {"model": {"vocab": {"a": 0, "b": 1}}})
    write(folder / "added_tokens.json", {"c": 2})
    assert changed() == ["tokenizer"]
    (folder / "added_tokens.json").unlink()
    write(folder / "config.json", {**CONFIG, "rms_norm_eps": 1e-5})
    assert changed() == ["config"]
    write(folder / "config.json", CONFIG)
    save_file({"weight": tensor([1.0, 2.0000002])}, folder / "model.safetensors")
    assert changed() == ["weights"]
    save_file({"weight": tensor([1.0, 2.0])}, folder / "model.safetensors")
    assert digests(folder, "template") == before
    assert before.fingerprint([1]) != before.fingerprint([1, 0])


def test_the_files_of_a_divided_checkpoint_count_in_the_order_of_their_names(folder: Path):
    parts = {name: f"model-{number}.safetensors" for number, name in enumerate("fedcba")}
    for name, file in parts.items():
        save_file({name: tensor([1.0])}, folder / file)
    write(folder / fingerprint.WEIGHTS_INDEX, {"weight_map": parts})
    (folder / "model.safetensors").unlink()
    assert [file.name for file in fingerprint.weight_files(folder)] == [f"model-{number}.safetensors" for number in range(6)]
    before = digests(folder)
    save_file({"d": tensor([3.0])}, folder / "model-2.safetensors")
    assert digests(folder).weights != before.weights


ADVICE = "load it in transformers where you trust it and save it with save_pretrained, or name a base.gguf_file"


def test_a_folder_of_pickle_weights_is_refused_with_how_to_convert_it(folder: Path):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BaseError) as caught:
        digests(folder)
    assert caught.value.lines() == [
        f"base.model: {folder} is no safetensors checkpoint: "
        f"it has only pickle weights (pytorch_model.bin), which are never loaded; {ADVICE}"
    ]


def test_weights_that_are_not_there_are_refused_by_name(folder: Path):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    write(folder / fingerprint.WEIGHTS_INDEX, {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    with pytest.raises(BaseError) as caught:
        digests(folder)
    assert caught.value.lines() == [f"base.model: {folder} is no safetensors checkpoint: model-2.safetensors is not there; {ADVICE}"]


def test_an_index_beside_a_single_file_counts_as_little_as_it_does_for_transformers(folder: Path):
    before = digests(folder)
    save_file({"weight": tensor([5.0])}, folder / "model-1.safetensors")
    write(folder / fingerprint.WEIGHTS_INDEX, {"weight_map": {"weight": "model-1.safetensors"}})
    assert fingerprint.weight_files(folder) == [folder / "model.safetensors"]
    assert digests(folder) == before


def test_code_counts_where_it_may_run(folder: Path):
    before = [fingerprint.digest_checkpoint(folder, None, code=code) for code in (False, True)]
    assert before[0] == before[1]  # there is none yet
    (folder / "parts").mkdir()
    (folder / "parts" / "modeling.py").write_text("epsilon = 1e-6")
    first = [fingerprint.digest_checkpoint(folder, None, code=code) for code in (False, True)]
    (folder / "parts" / "modeling.py").write_text("epsilon = 5.0")
    second = [fingerprint.digest_checkpoint(folder, None, code=code) for code in (False, True)]
    assert before[0] == first[0] == second[0]
    assert len({before[1].config, first[1].config, second[1].config}) == 3
    assert first[1].weights == second[1].weights


def test_a_folder_with_an_adapter_in_it_is_refused(folder: Path):
    write(folder / "adapter_config.json", {"base_model_name_or_path": "elsewhere"})
    with pytest.raises(BaseError) as caught:
        digests(folder)
    assert caught.value.lines() == [
        f"base.model: {folder} holds a PEFT adapter (adapter_config.json); name its base, or a checkpoint that it was merged into"
    ]


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "vocab.json"])
@pytest.mark.parametrize("content", ["{", "[" * 100_000])
def test_a_file_that_is_no_json_is_refused_by_name(folder: Path, file: str, content: str):
    (folder / file).write_text(content)
    with pytest.raises(BaseError, match=rf"{file}: not JSON \(.*\); fetch the checkpoint again$"):
        digests(folder)


@pytest.mark.parametrize("content", ['{"weight_map": {}}', '{"weight_map": {"a": "../model.safetensors"}}'])
def test_an_index_of_no_files_of_the_folder_is_refused(folder: Path, content: str):
    (folder / "model.safetensors").unlink()
    (folder / fingerprint.WEIGHTS_INDEX).write_text(content)
    with pytest.raises(BaseError, match=r"model\.safetensors\.index\.json: it names no file of this folder.*; fetch the checkpoint again$"):
        digests(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[" * 100_000])
def test_an_index_that_is_none_is_refused(folder: Path, content: str):
    (folder / "model.safetensors").unlink()
    (folder / fingerprint.WEIGHTS_INDEX).write_text(content)
    with pytest.raises(BaseError, match=r"model\.safetensors\.index\.json: not an index of weights \(.*\); fetch the checkpoint again$"):
        digests(folder)

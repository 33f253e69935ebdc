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
    return fingerprint.digest_checkpoint(folder, template)


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
    assert [file.name for file in fingerprint.weight_files(folder)] == [f"model-{number}.safetensors" for number in range(6)]
    before = digests(folder)
    (folder / "model.safetensors").unlink()  # the index says what counts
    assert digests(folder) == before
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
    write(folder / fingerprint.WEIGHTS_INDEX, {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
    with pytest.raises(BaseError) as caught:
        digests(folder)
    assert caught.value.lines() == [f"base.model: {folder} is no safetensors checkpoint: model-2.safetensors is not there; {ADVICE}"]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_an_index_that_is_none_is_refused(folder: Path, content: str):
    (folder / fingerprint.WEIGHTS_INDEX).write_text(content)
    with pytest.raises(BaseError, match=r"model\.safetensors\.index\.json: not an index of weights \(.*\); fetch the checkpoint again$"):
        digests(folder)

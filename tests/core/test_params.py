import subprocess
import sys
from dataclasses import dataclass

import pytest
import yaml

from stages.core import params
from stages.core.errors import SettingsError
from stages.core.settings.base import CheckpointBase, ToyBase
from stages.core.settings.export import Export
from stages.core.settings.runtime import Runtime

RUNTIME = {
    "device": "cpu",
    "threads": None,
    "logits_chunk": 64,
    "activation_checkpointing": False,
    "checkpoint_every": 1,
    "processes": 1,
    "nodes": 1,
    "rendezvous": None,
    "shard": False,
}
VALUES = {
    "base": {"seed": 1, "fit_steps": 0, "precision": "f32", "chat_template": "auto"},
    "export": {"merged": False},
    "runtime": RUNTIME,
    "grpo": "never looked at",
}


@dataclass(frozen=True)
class Params:
    base: ToyBase | CheckpointBase
    export: Export
    runtime: Runtime


def write(path, **changed):
    path.write_text(yaml.safe_dump({**VALUES, **changed}))
    return path


def refused(path):
    with pytest.raises(SettingsError) as error:
        params.load(Params, path)
    assert error.value.exit_code == 2
    return error.value.lines()


def test_the_sections_of_a_stage_are_read_and_no_others(tmp_path):
    found = params.load(Params, write(tmp_path / "params.yaml"))
    assert found == Params(ToyBase(1, 0, "f32", "auto"), Export(merged=False), Runtime("cpu", None, 64, False, 1, 1, 1, None, False))


def test_a_base_with_a_model_is_a_checkpoint(tmp_path):
    base = {"model": "m", "revision": None, "gguf_file": None, "precision": "f32", "chat_template": "off", "trust_remote_code": False}
    assert params.load(Params, write(tmp_path / "params.yaml", base=base)).base == CheckpointBase("m", None, None, "f32", "off", False)


def test_a_number_that_dvc_wrote_as_text_is_read(tmp_path):
    path = write(tmp_path / "params.yaml", runtime={**RUNTIME, "threads": 2})
    assert params.load(Params, path).runtime.threads == 2


def test_all_problems_of_all_sections_are_told_at_once(tmp_path):
    misspelt = {key.replace("threads", "thread"): value for key, value in RUNTIME.items()}
    path = write(
        tmp_path / "params.yaml",
        base={**VALUES["base"], "seed": -1, "precision": 3},
        runtime=misspelt,
    )
    assert [line.split(" ")[0].rstrip(":") for line in refused(path)] == [
        "base.seed",
        "base.precision",
        "runtime.thread",
        "runtime.threads",
    ]


def test_a_section_that_is_not_there_is_told_with_what_to_do(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({"base": VALUES["base"], "runtime": VALUES["runtime"]}))
    assert refused(path) == [f"export is missing from {path}: run python -m stages.compose"]


def test_a_file_that_is_not_there_is_told_with_what_to_do(tmp_path):
    path = tmp_path / "params.yaml"
    assert refused(path) == [f"{path}: there is no such file: run python -m stages.compose"]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"a: [", ":"),
        (b"a: 1\nb: 2\na: 3\n", ":3: a stands here a second time"),
        (b"\xff\xfe\x00", ": this is not YAML in UTF-8"),
        (b"\x07", ""),
        (b"a: 2020-99-99", ": a value in it cannot be read as YAML (month must be in 1..12)"),
        (b"a: " + b"9" * 5000, ": a value in it cannot be read as YAML (Exceeds the limit"),
        (b"[" * 5000, ""),
        (b"", ": expected sections of settings, found null"),
        (b"[1]", ": expected sections of settings, found [1]"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_line_and_what_to_do(tmp_path, content, where):
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    (line,) = refused(path)
    assert line.startswith(f"{path}{where}")
    assert line.endswith(": run python -m stages.compose")


def test_reading_settings_imports_neither_torch_nor_hydra():
    code = "import sys, stages.core.params, stages.core.runner; print({'torch', 'hydra', 'omegaconf', 'dvc'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_value_that_holds_itself_is_refused(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(VALUES).replace("threads: ", "threads: &own [*own] #"))
    assert "&own" in path.read_text()
    (line,) = refused(path)
    assert line.startswith("runtime.threads: expected a whole number or null, found a list (a list)")

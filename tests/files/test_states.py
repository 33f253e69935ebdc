"""Saved states of a run: what is kept, what is taken when one is broken, and whose they are."""

import dataclasses
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.files import states
from stages.files.states import State, StateFolder
from tests.learning import runs

INPUTS = [Path("rows.jsonl")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    INPUTS[0].write_text("a\n")
    return tmp_path


def state(step: int) -> State:
    tensors = {"a": np.full((2, 3), step, np.float32), "moment": np.full(1, step / 3, np.float64)}
    return State(step, tensors, {"steps": [{"step": step, "loss": 0.1 * step}]})


def held(path: str = "run") -> StateFolder:
    folder = StateFolder(Path(path))
    folder.path.mkdir(exist_ok=True)
    return folder


def require_equal(found: State | None, expected: State) -> None:
    assert found is not None
    assert (found.step, found.fields) == (expected.step, expected.fields)
    assert {name: (tensor.dtype, tensor.tobytes()) for name, tensor in found.tensors.items()} == {
        name: (tensor.dtype, tensor.tobytes()) for name, tensor in expected.tensors.items()
    }


def test_the_last_state_comes_back_as_it_was_and_two_are_kept():
    folder = held()
    for step in (1, 2, 30, 4000):
        folder.write(state(step))
        require_equal(folder.newest(), state(step))
    names = [f"{step:09d}.{ending}" for step in (30, 4000) for ending in ("json", "safetensors")]
    assert sorted(file.name for file in folder.path.iterdir()) == names


def test_no_state_is_none():
    assert held().newest() is None


def damage_by_cutting(content: bytes) -> bytes:
    return content[: len(content) // 2]


def damage_by_flipping(content: bytes) -> bytes:
    place = len(content) - 3
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("ending", ["json", "safetensors"])
@pytest.mark.parametrize("damage", [damage_by_cutting, damage_by_flipping, lambda _: b"", lambda _: b"[" * 100_000])
def test_a_broken_state_is_told_and_the_one_before_it_taken(ending: str, damage: Any, capsys: pytest.CaptureFixture[str]):
    folder = held()
    folder.write(state(5))
    folder.write(state(10))
    broken = folder.path / f"000000010.{ending}"
    broken.write_bytes(damage(broken.read_bytes()))
    require_equal(folder.newest(), state(5))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("run/000000010.json: this saved state cannot be used (")
    folder.write(state(7))  # the run goes on from there, and both that are kept are sound
    assert sorted(file.name for file in folder.path.glob("*.json")) == ["000000005.json", "000000007.json"]


def test_weights_of_one_step_are_never_taken_with_the_fields_of_another():
    folder = held()
    folder.write(state(5))
    folder.write(state(10))
    (folder.path / "000000005.safetensors").replace(folder.path / "000000010.safetensors")
    assert folder.newest() is None  # neither has what it was written with


def test_a_state_of_another_run_that_was_moved_here_is_not_taken(capsys: pytest.CaptureFixture[str]):
    other, folder = held("another"), held()
    folder.write(state(5))
    other.write(state(10))
    for file in other.path.iterdir():
        file.replace(folder.path / file.name)
    require_equal(folder.newest(), state(5))
    assert "run/000000010.json: this saved state cannot be used (it is of the run another)" in capsys.readouterr().err


def test_a_state_under_the_name_of_another_step_is_not_taken(capsys: pytest.CaptureFixture[str]):
    folder = held()
    folder.write(state(5))
    for file in folder.path.iterdir():
        file.replace(folder.path / file.name.replace("5", "9"))
    assert folder.newest() is None
    assert "run/000000009.json: this saved state cannot be used (it is of step 5)" in capsys.readouterr().err


def test_a_run_whose_states_have_no_place_is_refused_at_its_start():
    settings = runs.reward_settings()
    place = Path(".state/reward") / states.run_name("reward", settings, INPUTS)
    place.parent.mkdir(parents=True)
    place.write_text("a file")
    with pytest.raises(FileExistsError) as caught, states.opened("reward", settings, INPUTS):
        pytest.fail("it was opened")
    assert caught.value.filename == str(place)


def test_a_run_that_broke_off_before_its_first_save_leaves_nothing():
    with pytest.raises(KeyError), states.opened("reward", runs.reward_settings(), INPUTS):
        raise KeyError
    assert list(Path(".state/reward").iterdir()) == []


def test_weights_without_a_sidecar_are_no_state():
    folder = held()
    folder.write(state(5))
    folder.write(state(10))
    (folder.path / "000000010.json").unlink()
    require_equal(folder.newest(), state(5))


def test_a_run_that_ends_well_leaves_nothing_and_one_that_does_not_leaves_its_states():
    settings = runs.reward_settings()
    with pytest.raises(KeyError), states.opened("reward", settings, INPUTS) as folder:
        folder.write(state(1))
        raise KeyError
    with states.opened("reward", settings, INPUTS) as folder:
        require_equal(folder.newest(), state(1))
        assert folder.path.parent == Path(".state/reward")
    assert list(Path(".state/reward").iterdir()) == []


def test_a_save_that_was_killed_leaves_no_file_behind():
    settings = runs.reward_settings()
    with pytest.raises(KeyError), states.opened("reward", settings, INPUTS) as folder:
        folder.write(state(1))
        (folder.path / ".000000002.json.77.tmp").write_text("half")
        raise KeyError
    with pytest.raises(KeyError), states.opened("reward", settings, INPUTS) as folder:
        assert sorted(file.name for file in folder.path.iterdir()) == ["000000001.json", "000000001.safetensors"]
        raise KeyError


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(runs.reward_settings())])
def test_another_setting_is_another_run(field: str):
    settings = runs.reward_settings()
    value = getattr(settings, field)
    other = dataclasses.replace(settings, **{field: [0] if isinstance(value, list | str) else value + 1})
    assert states.run_name("reward", settings, INPUTS) != states.run_name("reward", other, INPUTS)


def test_another_input_another_stage_and_another_version_are_other_runs(monkeypatch: pytest.MonkeyPatch):
    settings = runs.reward_settings()
    first = states.run_name("reward", settings, INPUTS)
    assert states.run_name("reward", settings, INPUTS) == first
    assert states.run_name("grpo", settings, INPUTS) != first
    INPUTS[0].write_text("b\n")
    assert states.run_name("reward", settings, INPUTS) != first
    INPUTS[0].write_text("a\n")
    version = importlib.metadata.version
    for library in ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy"):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, library=library: "0" if name == library else version(name))
        assert states.run_name("reward", settings, INPUTS) != first


def test_other_code_is_another_run_and_code_is_what_dvc_yaml_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    listed = {path.relative_to(states.PROJECT).as_posix() for path in states.code("grpo")}
    assert {"stages/grpo.py", "stages/learning/grpo_loop.py", "stages/rewards/length.py"} <= listed
    assert not {"stages/reward.py", "stages/compare.py"} & listed
    (tmp_path / "stages").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages: {reward: {deps: [artifacts/base, stages/reward.py]}}")
    (tmp_path / "stages/reward.py").write_text("one")
    monkeypatch.setattr(states, "PROJECT", tmp_path)
    first = states.run_name("reward", runs.reward_settings(), INPUTS)
    (tmp_path / "stages/reward.py").write_text("two")
    assert states.run_name("reward", runs.reward_settings(), INPUTS) != first


def test_a_second_process_of_the_same_run_saves_nothing_and_says_so(capsys: pytest.CaptureFixture[str]):
    settings = runs.reward_settings()
    with states.opened("reward", settings, INPUTS) as folder:
        folder.write(state(1))
        with states.opened("reward", settings, INPUTS) as second:
            assert second is None
        assert "another process makes the same run" in capsys.readouterr().err
        require_equal(folder.newest(), state(1))  # whose states the second left alone
    with states.opened("reward", settings, INPUTS) as third:
        assert third is not None


def test_a_job_of_a_sweep_keeps_its_states_in_the_workspace_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    INPUTS[0].write_text("a\n")
    with states.opened("reward", runs.reward_settings(), INPUTS) as folder:
        assert folder.path.parent == tmp_path / ".state/reward"


WRITER = """
import sys
import numpy as np
from pathlib import Path
from stages.files.states import State, StateFolder
folder = StateFolder(Path("run"))
for step in range(1, 1_000_000):
    folder.write(State(step, {"a": np.full(20_000, step, np.float32)}, {"step": step}))
    print(step, flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_state(folder: Path):
    """Fifty kills: what is read back is the last state that was told to be written, or the one that was being written."""
    environment = {**os.environ, "PYTHONPATH": str(states.PROJECT)}
    for number in range(50):
        with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            told = [process.stdout.readline()]
            time.sleep(0.0007 * number)
            process.send_signal(signal.SIGKILL)
            told += process.stdout.read().split()
        found = StateFolder(Path("run")).newest()
        assert found is not None
        assert int(told[-1]) <= found.step <= int(told[-1]) + 1
        assert found.fields == {"step": found.step}
        assert (found.tensors["a"] == found.step).all()
        StateFolder(Path("run")).remove()

"""A training that was broken off goes on, and ends with the bytes of one that was not."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.core import stopping
from stages.core.errors import TrainingError
from stages.files.states import State, StateFolder
from stages.learning import grpo_loop, reward_loop
from stages.learning.optimizer import Optimizer
from stages.learning.resume import Saving
from stages.learning.scores import Scores
from tests.learning import runs
from tests.learning.runs import calm_pairs, ended, fitting_prompts, train_policy, train_reward


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    path = tmp_path / "run"
    path.mkdir()
    return StateFolder(path)


class BrokenOffError(Exception):
    """What ends a run in these tests."""


def broken_off(monkeypatch: pytest.MonkeyPatch, loop: Any, at: int) -> None:
    """Makes the loop's optimizer fail before the step numbered `at`, from 0."""

    class Breaking(Optimizer):
        def clip(self, step: int, where: str) -> float:
            if step == at:
                raise BrokenOffError
            return super().clip(step, where)

    monkeypatch.setattr(loop, "Optimizer", Breaking)


# 12 steps: windows of 3 and 3 prompts in 6 iterations, of 4, 4 and 1 pairs in 4 epochs
POLICY: dict[str, Any] = {"iterations": 6, "accumulation": 3, "group": 3, "weight_decay": 0.1, "warmup_steps": 3}
REWARD: dict[str, Any] = {"epochs": 4, "accumulation": 4, "weight_decay": 0.1, "warmup_steps": 3}


def policy(saving: Saving | None = None) -> runs.Trained:
    return train_policy(fitting_prompts(6), **({"saving": saving} if saving else {}), **POLICY)


def reward(saving: Saving | None = None) -> runs.Trained:
    return train_reward(calm_pairs(9), **({"saving": saving} if saving else {}), **REWARD)


@pytest.fixture(scope="module")
def straight() -> dict[Any, runs.Trained]:
    return {policy: policy(), reward: reward()}


@pytest.mark.parametrize(("train", "loop"), [(policy, grpo_loop), (reward, reward_loop)])
@pytest.mark.parametrize("every", [1, 5, 100])
@pytest.mark.parametrize("at", [0, 1, 4, 6, 7, 11])
def test_a_run_that_was_broken_off_ends_with_the_same_bytes(
    straight: dict[Any, runs.Trained], folder: StateFolder, monkeypatch: pytest.MonkeyPatch, train: Any, loop: Any, every: int, at: int
):
    with monkeypatch.context() as patched:
        broken_off(patched, loop, at)
        with pytest.raises(BrokenOffError) as error:
            train(Saving(folder, every))
    assert list(getattr(error.value, "__notes__", [])) == (
        [f"the state after step {at}/12 is saved: the same run goes on from it"] if at else []
    )
    resumed = train(Saving(folder, every))
    assert resumed.bytes() == straight[train].bytes()
    assert resumed.run == straight[train].run
    assert resumed.appended == straight[train].appended
    said = [line for line in resumed.said if line.startswith("resuming at step")]
    assert said == ([f"resuming at step {at + 1}/12: the state after step {at} of a run that was broken off"] if at else [])
    assert sum(" loss " in line and " step " in line for line in resumed.said) == 12 - at


@pytest.mark.parametrize(("train", "loop"), [(policy, grpo_loop), (reward, reward_loop)])
def test_a_kill_loses_what_came_after_the_last_state_alone(
    straight: dict[Any, runs.Trained], folder: StateFolder, monkeypatch: pytest.MonkeyPatch, train: Any, loop: Any
):
    """Killed at step 8, saved every 5: what a kill cannot do, saving when it is broken off, is taken out."""
    with monkeypatch.context() as patched:
        broken_off(patched, loop, 8)
        patched.setattr(
            StateFolder, "write", lambda self, state, write=StateFolder.write: write(self, state) if state.step % 5 == 0 else None
        )
        with pytest.raises(BrokenOffError):
            train(Saving(folder, 5))
    resumed = train(Saving(folder, 5))
    assert "resuming at step 6/12: the state after step 5 of a run that was broken off" in resumed.said
    assert resumed.bytes() == straight[train].bytes()
    assert resumed.run == straight[train].run


def test_the_last_step_is_saved_too(folder: StateFolder, straight: dict[Any, runs.Trained]):
    """So that a disk that is too full for the outputs costs no step."""
    policy(Saving(folder, 100))
    again = policy(Saving(folder, 100))
    assert "resuming at step 12/12: the state after step 12 of a run that was broken off" in again.said
    assert again.bytes() == straight[policy].bytes()
    assert again.run == straight[policy].run


def test_a_broken_last_state_costs_the_steps_since_the_one_before(folder: StateFolder, straight: dict[Any, runs.Trained]):
    policy(Saving(folder, 5))
    last = folder.path / "000000012.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    again = policy(Saving(folder, 5))
    assert "resuming at step 11/12: the state after step 10 of a run that was broken off" in again.said
    assert again.bytes() == straight[policy].bytes()


def test_refused_groups_and_windows_are_counted_once(folder: StateFolder, monkeypatch: pytest.MonkeyPatch):
    """A window that is refused whole takes no step and is a planned one all the same."""
    groups = [[ended(5), ended(6, 7)], [ended(), ended(6)], [ended(), ended(7)], [ended(5, 5), ended(8)]]
    settings: dict[str, Any] = {"iterations": 3, "accumulation": 2, "group": 2, "empty_completions": "refuse"}
    with monkeypatch.context() as patched:
        runs.scripted(patched, groups)
        whole = train_policy(fitting_prompts(4), **settings)
    assert whole.run.refused_groups == 6
    with monkeypatch.context() as patched:
        runs.scripted(patched, groups)
        broken_off(patched, grpo_loop, 3)
        with pytest.raises(BrokenOffError):
            train_policy(fitting_prompts(4), saving=Saving(folder, 1), **settings)
        patched.undo()
        runs.scripted(patched, [*groups[2:], *groups[:2]])  # the run stopped between the windows of an iteration
        resumed = train_policy(fitting_prompts(4), saving=Saving(folder, 1), **settings)
    assert resumed.bytes() == whole.bytes()
    assert resumed.run == whole.run


def test_a_state_is_safetensors_and_json_that_hold_parameters_moments_and_progress(folder: StateFolder):
    policy(Saving(folder, 5))
    state = folder.newest()
    assert state is not None
    parameters = {name.removeprefix("parameter:") for name in state.tensors if name.startswith("parameter:")}
    moments = {name.removeprefix("optimizer:") for name in state.tensors if name.startswith("optimizer:")}
    assert len(parameters) == 16
    assert moments == {f"{name}.{moment}" for name in parameters for moment in ("step", "exp_avg", "exp_avg_sq")}
    assert state.tensors[f"optimizer:{min(parameters)}.step"] == 12
    assert sorted(state.fields) == ["figures", "history", "refused_groups", "steps", "unrated_groups"]
    assert len(state.fields["steps"]) == 12
    assert sorted(file.suffix for file in folder.path.iterdir()) == [".json", ".json", ".safetensors", ".safetensors"]


class Failing(runs.Written):
    """Gives a reward that is no number when it is asked for the eighth time."""

    def scores(self, groups: Any) -> list[Scores]:
        found = super().scores(groups)
        return [runs.scored(torch.full_like(one.total.values, float("nan"))) for one in found] if self.asked >= 8 else found


def test_a_number_that_is_not_finite_leaves_the_last_state(folder: StateFolder):
    scorer = Failing([[1.0, 2.0, 4.0]])
    with pytest.raises(TrainingError, match="the reward is nan, which is not finite; no weight was moved") as error:
        train_policy(fitting_prompts(6), scorer, saving=Saving(folder, 100), **POLICY)
    state = folder.newest()
    assert state is not None
    assert error.value.__notes__ == [f"the state after step {state.step}/12 is saved: the same run goes on from it"]
    assert state.step == len(state.fields["steps"]) == 2  # the eighth group is of the third window
    resumed = train_policy(fitting_prompts(6), runs.Written([[1.0, 2.0, 4.0]]), saving=Saving(folder, 100), **POLICY)
    assert resumed.bytes() == train_policy(fitting_prompts(6), runs.Written([[1.0, 2.0, 4.0]]), **POLICY).bytes()


def test_a_state_that_cannot_be_saved_is_told_beside_what_ended_the_run(folder: StateFolder, monkeypatch: pytest.MonkeyPatch):
    def full(_folder: StateFolder, state: State) -> None:
        if state.step > 4:
            raise OSError(28, "No space left on device", "run/000000005.safetensors")
        write(folder, state)

    write = StateFolder.write
    monkeypatch.setattr(StateFolder, "write", full)
    broken_off(monkeypatch, grpo_loop, 7)
    with pytest.raises(BrokenOffError) as error:
        policy(Saving(folder, 4))
    assert error.value.__notes__ == [
        "the state after step 7 could not be saved (run/000000005.safetensors: No space left on device)",
        "the state after step 4/12 is saved: the same run goes on from it",
    ]
    with pytest.raises(OSError, match="No space left on device") as failure:  # in the midst of a run it ends it
        policy(Saving(folder, 5))
    assert failure.value.__notes__[-1] == "the state after step 4/12 is saved: the same run goes on from it"


@pytest.fixture
def listening() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in stopping.SIGNALS}
    stopping.listen()
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("listening")
def test_a_signal_that_comes_while_a_broken_off_run_is_saved_takes_nothing_from_what_it_says(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
):
    """Where one of several processes is lost, the others fail for want of it and get their launcher's signal at once."""

    def write(folder: StateFolder, state: State, write: Any = StateFolder.write) -> None:
        signal.raise_signal(signal.SIGTERM)
        write(folder, state)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(StateFolder, "write", write)
    broken_off(monkeypatch, grpo_loop, 3)
    with pytest.raises(BrokenOffError) as error:
        policy(Saving(folder, 5))
    assert error.value.__notes__ == ["the state after step 3/12 is saved: the same run goes on from it"]


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize(("train", "loop"), [(policy, grpo_loop), (reward, reward_loop)])
def test_a_step_that_is_taken_while_a_signal_waits_is_told(folder: StateFolder, monkeypatch: pytest.MonkeyPatch, train: Any, loop: Any):
    class Signalled(Optimizer):
        def step(self, step: int) -> None:
            super().step(step)
            if step == 4:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop, "Optimizer", Signalled)
    history, said = runs.Appended(), list[str]()
    monkeypatch.setattr(runs, "Appended", lambda: history)
    monkeypatch.setattr(loop, "say", said.append)
    with pytest.raises(stopping.Stopped) as stopped:
        train(Saving(folder, 100))
    assert stopped.value.__notes__ == ["the state after step 5/12 is saved: the same run goes on from it"]
    assert len(history) == 5
    assert any("step 5/12 loss" in line for line in said)


def test_a_state_of_other_shapes_is_refused(folder: StateFolder):
    policy(Saving(folder, 5))
    state = folder.newest()
    assert state is not None
    name = next(name for name in state.tensors if name.endswith("lora_B.weight"))
    folder.write(State(20, {**state.tensors, name: np.zeros((1, 8), np.float32)}, state.fields))
    with pytest.raises(AssertionError, match=r"has shape \[1, 8\], expected \[\d+, 8\]"):
        policy(Saving(folder, 5))


def test_the_history_file_holds_every_step_once(folder: StateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from stages.files.history import HistoryFile

    monkeypatch.chdir(tmp_path)
    history = HistoryFile("grpo")
    monkeypatch.setattr(runs, "Appended", lambda: history)
    with monkeypatch.context() as patched:
        broken_off(patched, grpo_loop, 7)
        with pytest.raises(BrokenOffError):
            policy(Saving(folder, 5))
    resumed = policy(Saving(folder, 5))
    assert [json.loads(line) for line in history.path.read_text().splitlines()] == resumed.run.steps


def updated(saving: Saving | None = None) -> runs.Trained:
    """12 steps: six windows, each stepped on twice."""
    return train_policy(fitting_prompts(6), **({"saving": saving} if saving else {}), **{**POLICY, "iterations": 3, "updates": 2})


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("at", [1, 4, 7])
def test_steps_on_one_window_are_taken_again_together(folder: StateFolder, monkeypatch: pytest.MonkeyPatch, every: int, at: int):
    """A window that was broken off between its two steps is drawn anew, from the policy that drew it."""
    straight = updated()
    assert any(row["clipped"] > 0 for row in straight.run.steps)
    with monkeypatch.context() as patched:
        broken_off(patched, grpo_loop, at)
        with pytest.raises(BrokenOffError) as error:
            updated(Saving(folder, every))
    whole = at - at % 2
    saved = whole if at % 2 == 0 else whole if every == 1 else {3: {1: 0, 7: 6}}.get(every, {}).get(at, 0)
    assert list(getattr(error.value, "__notes__", [])) == (
        [f"the state after step {saved}/12 is saved: the same run goes on from it"] if saved else []
    )
    resumed = updated(Saving(folder, every))
    assert sum(" loss " in line and " step " in line for line in resumed.said) == 12 - saved
    assert resumed.bytes() == straight.bytes()
    assert resumed.run == straight.run
    assert resumed.appended == straight.appended

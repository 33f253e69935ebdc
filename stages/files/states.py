"""Saved states of a training under way, so that a run that was broken off goes on: `.state/<stage>/<run>/<step>.{safetensors,json}`.

A run is named by a digest of all that its result depends on: settings, input files, code, versions of libraries. So a changed
input never goes on from another's state. `runtime` is no part of it: it changes numbers by rounding alone, and a run may go on
with other threads or processes. Each state is two files, the second naming the first by its digest: what a kill, a full disk
or a fault of the disk left half is noticed, and the state before it is taken. Never pickle.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.numpy
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError

from stages.core import layout, libraries, locks
from stages.core.progress import say
from stages.files import outputs

KEPT = 2
"""States of a run that are kept: the last, and one before it."""
PROJECT = Path(__file__).resolve().parents[2]


class State(NamedTuple):
    """A training after so many steps."""

    step: int
    tensors: Mapping[str, NDArray[Any]]
    fields: Mapping[str, Any]
    """What else it needs to go on, as JSON."""


class StateFolder:
    """The saved states of one run, which this process alone writes; see `opened`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, state: State) -> None:
        """Saves the state and removes all but the last KEPT; raises OSError with the file's name."""
        weights = safetensors.numpy.save(dict(state.tensors))
        sidecar: dict[str, Any] = {
            "run": self.path.name,
            "step": state.step,
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "fields": dict(state.fields),
        }
        sidecar["digest"] = outputs.digest(sidecar)
        with outputs.together():  # the sidecar gets its name last: without it there is no state
            outputs.write_bytes(self._weights(state.step), weights)
            outputs.write_bytes(self._sidecar(state.step), json.dumps(sidecar).encode())
        for step in self._steps()[KEPT:]:
            self._remove(step)

    def newest(self) -> State | None:
        """The last state that can be read; each one that cannot is told on stderr. None where there is none."""
        for step in self._steps():
            try:
                return self._read(step)
            except _UnusableError as error:
                say(f"{self._sidecar(step)}: this saved state cannot be used ({error}); the one before it is looked for")
                self._remove(step)  # or it would be counted among those that are kept
        return None

    def remove(self) -> None:
        """Removes the run's states: it has ended well."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _read(self, step: int) -> State:
        try:
            sidecar = json.loads(self._sidecar(step).read_bytes())
            weights = self._weights(step).read_bytes()
            if sidecar["digest"] != outputs.digest(sidecar):
                raise _UnusableError("its fields do not match their digest")
            if sidecar["run"] != self.path.name:
                raise _UnusableError(f"it is of the run {sidecar['run']}")
            if sidecar["step"] != step:
                raise _UnusableError(f"it is of step {sidecar['step']}")
            if sidecar["weights_sha256"] != hashlib.sha256(weights).hexdigest():
                raise _UnusableError(f"{self._weights(step).name} is not the one that it was written with")
            return State(sidecar["step"], safetensors.numpy.load(weights), sidecar["fields"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            raise _UnusableError(f"{type(error).__name__}: {error}") from error

    def _remove(self, step: int) -> None:
        for path in (self._sidecar(step), self._weights(step)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)

    def _steps(self) -> list[int]:
        """The steps that there are sidecars of, the last first."""
        return sorted((int(file.stem) for file in self.path.glob("*.json") if file.stem.isdecimal()), reverse=True)

    def _weights(self, step: int) -> Path:
        return self.path / f"{step:09d}.safetensors"

    def _sidecar(self, step: int) -> Path:
        return self.path / f"{step:09d}.json"


class _UnusableError(Exception):
    """A state that cannot be read, and why."""


@contextlib.contextmanager
def opened(stage: str, settings: Any, inputs: Sequence[Path], first: bool = True) -> Iterator[StateFolder | None]:
    """The folder of the states of a run of these settings and input files, held by this process while the block runs.

    Its states are removed where the block ends well. None where another process holds it, the same run in another checkout,
    which is told; and in all but the first of several processes that share the run.
    """
    if not first:
        yield None
        return
    path = layout.saved_states(stage) / run_name(stage, settings, inputs)
    with locks.held_at_once(path.with_suffix(".lock"), passing=True) as held:
        if not held:
            say(f"{path}: another process makes the same run, and saves its state here; this one saves none")
            yield None
            return
        path.mkdir(parents=True, exist_ok=True)  # where it cannot be, that is told before the run rather than at its first save
        for left in path.glob(".*.tmp"):  # by a save that was killed
            left.unlink(missing_ok=True)
        folder = StateFolder(path)
        try:
            yield folder
        except BaseException:
            with contextlib.suppress(OSError):
                path.rmdir()  # where nothing was saved
            raise
        folder.remove()


def run_name(stage: str, settings: Any, inputs: Sequence[Path]) -> str:
    """A digest of what the result of a run depends on, 16 hexadecimal digits; `settings` is the stage's section."""
    depends = {
        "stage": stage,
        "settings": dataclasses.asdict(settings),
        "inputs": {path.as_posix(): outputs.file_digest(path) for path in inputs},
        "code": {path.relative_to(PROJECT).as_posix(): outputs.file_digest(path) for path in code(stage)},
        "versions": libraries.versions(),
    }
    return outputs.digest(depends)[:16]


def code(stage: str) -> list[Path]:
    """The modules that the stage runs, as dvc.yaml lists them."""
    listed = yaml.safe_load((PROJECT / layout.PIPELINE).read_text("utf-8"))["stages"][stage]["deps"]
    own = [PROJECT / path for path in listed if path.startswith("stages/")]
    return sorted(file for path in own for file in ([path] if path.is_file() else path.rglob("*.py")))

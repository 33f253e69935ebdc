"""DVC in a process of its own, for a job of a sweep: several of its commands one after another, each with its log.

usage    python -m stages.sweeps.steps PLAN, from the folder that it is to run in; PLAN is a `Plan`, as JSON

Several commands in one process spare the seconds in which DVC is imported. It dies with the process that started it, and its
stages with it. A step with locks is of stages that other jobs share: it waits for them, and is left out where one has run it
and the cache still has what that made.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from stages.core import layout
from stages.core.locks import held
from stages.core.params import read_yaml
from stages.core.progress import say
from stages.core.tether import die_with_parent

STEP_FAILED = 10
"""Exit code where the first step failed; the next one's is one more, and so on."""

Dvc = Callable[[list[str]], int]
"""DVC's command line: its exit code for arguments."""


class Step(NamedTuple):
    """One DVC command of a job."""

    arguments: list[str]
    log: str
    """File that the command's output is added to."""
    locks: dict[str, str]
    """Locks to hold meanwhile: the file of each, by the stage that it is of."""


class Plan(NamedTuple):
    """What one process is to do."""

    job: str
    """How the job is called in a line about it."""
    parent: int
    """The process that it dies with."""
    cache: str
    """Folder of DVC's cache."""
    steps: list[Step]


def encode(plan: Plan) -> str:
    """The plan as an argument."""
    return json.dumps([*plan[:-1], plan.steps])


def decode(argument: str) -> Plan:
    """The plan that an argument encodes."""
    job, parent, cache, steps = json.loads(argument)
    return Plan(job, parent, cache, [Step(*step) for step in steps])


def main(plan: Plan, dvc: Dvc) -> int:
    """Runs the steps until one fails; the exit code says which, and is 0 where none did."""
    for number, step in enumerate(plan.steps):
        if not _run(plan, step, dvc):
            return STEP_FAILED + number
    return 0


def _run(plan: Plan, step: Step, dvc: Dvc) -> bool:
    """Runs the step with its locks held, in their order, and notes in them what it made; gives whether it ended well."""
    with contextlib.ExitStack() as stack:
        files: dict[str, IO[str]] = {}
        for stage, path in step.locks.items():

            def waiting(stage: str = stage) -> None:
                say(f"{plan.job}: waits for the stage {stage}, which another job runs")

            files[stage] = stack.enter_context(held(Path(path), waiting))
        if files and all(_has_run(file.read(), Path(plan.cache)) for file in files.values()):
            return True
        with _output_to(Path(step.log)):
            sys.stdout.write(f"$ dvc {' '.join(step.arguments)}\n")
            sys.stdout.flush()
            code = _exit_code(dvc, step.arguments)
        if code == 0 and files:
            lock = read_yaml(layout.LOCK)
            for stage, file in files.items():
                file.truncate(0)
                file.write(json.dumps(digests(lock, stage)))
        return code == 0


def digests(lock: Mapping[str, Any], stage: str) -> list[str]:
    """Those under which DVC's cache keeps what a stage made, by dvc.lock; reports are kept by Git."""
    return [output["md5"] for output in lock["stages"][stage].get("outs", []) if output["md5"].endswith(".dir")]


def is_kept(digests: Sequence[str], cache: Path) -> bool:
    """Whether the cache has all of these: `dvc gc` may have removed some."""
    return all((cache / "files" / "md5" / digest[:2] / digest[2:]).is_file() for digest in digests)


def _has_run(note: str, cache: Path) -> bool:
    """Whether a stage has run, by the note in its lock, and the cache has what it made."""
    return bool(note) and is_kept(json.loads(note), cache)


def _exit_code(dvc: Dvc, arguments: Sequence[str]) -> int:
    try:
        return dvc(list(arguments))
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Sends stdout and stderr to the end of the log, of this process and of those that it starts, until it is left."""
    kept = os.dup(1), os.dup(2)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in zip((1, 2), kept, strict=True):
            os.dup2(saved, number)
            os.close(saved)


if __name__ == "__main__":
    asked = decode(sys.argv[1])
    die_with_parent(signal.SIGKILL, asked.parent)
    from dvc.cli import main as dvc_main  # a second, in which the parent may go

    sys.exit(main(asked, dvc_main))

"""DVC in a process of its own, for a job of a sweep: several of its commands one after another, each with its log.

usage    python -m stages.versions.reproduce PLAN, from the folder that it is to run in; PLAN is a `Step` per command, as JSON

Several commands in one process spare the seconds in which DVC is imported. It dies with the process that started it, and its
stages with it. A step with locks is of stages that other jobs share: it waits for them, and is left out where one ran it.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dvc.cli import main as dvc

from stages.core.locks import held
from stages.core.progress import say
from stages.core.tether import die_with_parent

DONE = "done"
"""What stands in the lock of a stage that has run."""
STEP_FAILED = 10
"""Exit code where the first step failed; the next one's is one more, and so on."""


class Step(NamedTuple):
    """One DVC command of a job."""

    arguments: list[str]
    log: str
    """File that the command's output is added to."""
    locks: dict[str, str]
    """Locks to hold meanwhile: the file of each, by the stage that it is of."""
    job: str
    """How the job is called in a line about it."""


def encode(steps: Sequence[Step]) -> str:
    """The plan as an argument."""
    return json.dumps([step._asdict() for step in steps])


def main(plan: str) -> int:
    """Runs the steps until one fails; the exit code says which, and is 0 where none did."""
    die_with_parent(signal.SIGKILL)
    for number, fields in enumerate(json.loads(plan)):
        if not _run(Step(**fields)):
            return STEP_FAILED + number
    return 0


def _run(step: Step) -> bool:
    """Runs the step with its locks held, in their order, and notes in them that it ran; leaves it out where that stands in all of them.

    Gives whether it ended well.
    """
    with contextlib.ExitStack() as stack:
        files = []
        for stage, path in step.locks.items():

            def waiting(stage: str = stage) -> None:
                say(f"{step.job}: waits for the stage {stage}, which another job runs")

            files.append(stack.enter_context(held(Path(path), waiting)))
        if files and all(file.read() == DONE for file in files):
            return True
        with _output_to(Path(step.log)):
            code = _dvc(step.arguments)
        if code == 0:
            for file in files:
                file.truncate(0)
                file.write(DONE)
        return code == 0


def _dvc(arguments: Sequence[str]) -> int:
    sys.stdout.write(f"$ dvc {' '.join(arguments)}\n")
    sys.stdout.flush()
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
    sys.exit(main(sys.argv[1]))

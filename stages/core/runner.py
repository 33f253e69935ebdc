"""Running a stage from the command line: one document on stdout where it ends well, lines on stderr where it refuses.

Exit codes: 2 for settings, 1 for content, models and runs (each error carries its own), 130 when interrupted. Any other
exception is our own mistake and keeps its traceback.
"""

import contextlib
import errno
import functools
import gc
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar

from stages.core import params as params_file
from stages.core import restore
from stages.core.errors import LeashError, SettingsError
from stages.core.tether import die_with_parent

P = TypeVar("P")


def _running() -> str | None:
    """The name of the stage that this process is, `python -m stages.<name>`; None where it only imports the module, as a test does."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    package, _, name = spec.name.rpartition(".") if spec else ("", "", "")
    return name if package == "stages" else None


def _stopped(stage: str, signum: int, _frame: object) -> None:
    """Ends the process in one line and, under DVC, with what brings the earlier outputs back: also while modules are imported."""
    how = "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"
    _end(stage, [f"{stage}: {how}"], 128 + signum)


def _mistaken(stage: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Told of a mistake of our own: its traceback, as ever, and what any other failure ends with."""
    sys.__excepthook__(kind, error, trace)
    _tell(stage, [])


if (running := _running()) is not None:
    # A caller that closed them: libraries write to both.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stopping in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stopping, functools.partial(_stopped, running))
    sys.excepthook = functools.partial(_mistaken, running)
    if "DVC_STAGE" in os.environ:
        die_with_parent(signal.SIGTERM)  # or a stage whose dvc was killed would go on writing beside the one of the next run
    # What torch and transformers make while they are imported lives as long as the process; looking for garbage among it is a
    # quarter of a stage's start. Stages import this module first, and `execute` turns the collector on, past what is there by then.
    gc.disable()

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Document(NamedTuple):
    """What a stage prints: the path of what it made, and its report."""

    path: Path
    report: Mapping[str, Any]


def run(stage: str, params: type[P], main: Callable[[P], Document]) -> NoReturn:
    """Runs a stage that takes its settings from params.yaml alone, prints its document and exits."""
    arguments = sys.argv[1:]
    if arguments in (["--help"], ["-h"]):
        print_help(main)

    def work() -> Document:
        refuse_arguments(stage, arguments)
        return main(params_file.load(params))

    execute(stage, work)


def execute(stage: str, work: Callable[[], Document]) -> NoReturn:
    """Does the work with stdout kept clear of what libraries print, prints its document and exits with its code."""

    def text() -> str:
        document = work()
        return as_json({"path": document.path.as_posix(), "report": document.report})

    finish(stage, text)


def finish(stage: str, work: Callable[[], str]) -> NoReturn:
    """Does the work as `execute` does, and prints the text that it returns."""
    with _refusing(stage), _stdout_on_stderr():
        text = work()
    show(stage, text)
    sys.exit(0)


def attempt(name: str, work: Callable[[], None]) -> NoReturn:
    """Does work that itself shows what it has to show, and exits with its code."""
    with _refusing(name):
        work()
    sys.exit(0)


def show(stage: str, text: str) -> None:
    """Prints the text on stdout; a closed pipe or a full disk ends the process in one line, since what was made is whole all the same."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter's last flush fails once more
        _end(stage, [f"{stage}: its document could not be written to stdout: {error.strerror}"], 1)


def as_json(document: Mapping[str, Any]) -> str:
    """One pretty object, as it is printed; a number that is not finite is our own mistake."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


@contextlib.contextmanager
def _refusing(stage: str) -> Iterator[None]:
    """Ends the process where the block refuses, with the lines of the refusal and its exit code."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    try:
        yield
    except LeashError as error:
        _end(stage, error.lines(), error.exit_code)
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:
            raise
        _end(stage, [_cannot(stage, error)], 1)


def print_help(main: Callable[..., object]) -> NoReturn:
    """Prints what the module of a stage's `main` says of itself, and exits."""
    module = inspect.getmodule(main)
    sys.stdout.write(f"{inspect.getdoc(module) or ''}\n")
    sys.exit(0)


def refuse_arguments(stage: str, arguments: Sequence[str]) -> None:
    """Raises SettingsError where a stage that takes no arguments was given some."""
    if arguments:
        raise SettingsError(
            f"{arguments[0]}: python -m stages.{stage} takes no arguments: "
            f"settings enter with {params_file.COMPOSE} KEY=VALUE, which writes the params.yaml that it reads"
        )


def _end(stage: str, lines: Sequence[str], code: int) -> NoReturn:
    _tell(stage, lines)
    sys.exit(code)


def _tell(stage: str, lines: Sequence[str]) -> None:
    """Writes the last lines of a run that failed to stderr and, under DVC, what brings the earlier outputs back."""
    if "DVC_STAGE" in os.environ:
        lines = [*lines, *restore.advice(stage)]
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def _cannot(stage: str, error: OSError) -> str:
    where = error.filename or stage
    what = "free some space and run it again" if error.errno in DISK_FULL else "mend that and run it again"
    return f"{where}: {error.strerror or error}: {what}"


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Sends to stderr what is written to stdout, by Python or below it, until it is left."""
    try:
        kept = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    try:
        sys.stdout.flush()
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()  # what was written to the stream itself, before it is the document's again
        os.dup2(kept, 1)
        os.close(kept)

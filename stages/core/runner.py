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

from stages.core import layout, lock_guard, locks, rank, restore, stopping
from stages.core import params as params_file
from stages.core.errors import LeashError, RanksError, SettingsError
from stages.core.rank import Ending
from stages.core.stopping import Stopped
from stages.core.tether import die_with_parent

P = TypeVar("P")


def _running() -> str | None:
    """The name of the stage that this process is, `python -m stages.<name>`; None where it only imports the module, as a test does."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    package, _, name = spec.name.rpartition(".") if spec else ("", "", "")
    return name if package == "stages" else None


def _stopped_early(stage: str, signum: int, _frame: object) -> None:
    """Ends the process in one line and, under DVC, with what brings the earlier outputs back: while modules are imported."""
    _end(stage, Ending(rank.STOPPED, [f"{stage}: {stopping.describe(signum)}"], [], 128 + signum))


def _mistaken(stage: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Told of a mistake of our own: its traceback, as ever, and what any other failure ends with."""
    sys.__excepthook__(kind, error, trace)
    if rank.launched_by() is None:
        _tell(stage, Ending(rank.REFUSED, [], [], 1))


if (running := _running()) is not None:
    # A caller that closed them: libraries write to both.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for signum in stopping.SIGNALS:
        signal.signal(signum, functools.partial(_stopped_early, running))
    sys.excepthook = functools.partial(_mistaken, running)
    if rank.launched_by() or "DVC_STAGE" in os.environ:
        # or a stage whose dvc was killed would go on writing beside the one of the next run
        die_with_parent(signal.SIGTERM, rank.launched_by())
    if rank.launched_by() is None and "DVC_STAGE" in os.environ:
        lock_guard.start()
    # What torch and transformers make while they are imported lives as long as the process; looking for garbage among it is a
    # quarter of a stage's start. Stages import this module first, and `execute` turns the collector on, past what is there by then.
    gc.disable()

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
LESS_MEMORY = {
    "reward": "reward.batch_size or reward.max_sequence, or set runtime.activation_checkpointing=true",
    "grpo": "grpo.group, grpo.max_new_tokens or runtime.logits_chunk, or set runtime.activation_checkpointing=true",
    "evaluate": "evaluate.samples, evaluate.max_new_tokens or runtime.logits_chunk",
}
"""What to change where a stage runs out of memory."""
LOST_CONNECTION = ("DistBackendError", "DistNetworkError")
"""What torch raises in one of several processes where another is gone; by name, since core is without torch."""
GLOO = "/gloo/"
"""What is in the text of the plain RuntimeError that gloo raises then, in a product that gathers a layer say: its source's path."""
PATIENCE_SECONDS = 15.0
"""How long a stage waits for another of its kind in the same folder: one whose dvc was killed is about to end."""


class Document(NamedTuple):
    """What a stage prints: the path of what it made, and its report."""

    path: Path
    report: Mapping[str, Any]


def run(stage: str, params: type[P], main: Callable[[P], Document], spread: Callable[[P], Document | None] | None = None) -> NoReturn:
    """Runs a stage that takes its settings from params.yaml alone, prints its document and exits.

    One run at a time in a folder. `spread` may have other processes run `main` instead, and gives what they made; None where
    this process is to do it itself.
    """
    arguments = sys.argv[1:]
    if arguments in (["--help"], ["-h"]):
        print_help(main)

    def work() -> Document:
        refuse_arguments(stage, arguments)
        loaded = params_file.load(params)
        if spread and (document := spread(loaded)):
            return document
        if rank.number():  # the first of several processes holds the lock for all
            return main(loaded)
        with locks.held_alone(layout.STATE / f"{stage}.lock", stage, PATIENCE_SECONDS, lambda line: sys.stderr.write(line + "\n")):
            return main(loaded)

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
    if not rank.launched_by():  # the launcher prints it
        show(stage, text)
    _ignore_signals()
    sys.exit(0)


def attempt(name: str, work: Callable[[], None]) -> NoReturn:
    """Does work that itself shows what it has to show, and exits with its code."""
    try:
        with _refusing(name):
            work()
    except SystemExit as ended:
        if isinstance(ended.__context__, Stopped) and ended.__context__.again:  # what waited for good has threads that do so too
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + ended.__context__.signum)
        raise
    sys.exit(0)


def show(stage: str, text: str) -> None:
    """Prints the text on stdout; a closed pipe or a full disk ends the process in one line, since what was made is whole all the same."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter's last flush fails once more
        _end(stage, Ending(rank.REFUSED, [f"{stage}: its document could not be written to stdout: {error.strerror}"], [], 1))


def as_json(document: Mapping[str, Any]) -> str:
    """One pretty object, as it is printed; a number that is not finite is our own mistake."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


@contextlib.contextmanager
def _refusing(stage: str) -> Iterator[None]:
    """Ends the process where the block refuses, with the lines of the refusal and its exit code."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    if _running() is not None:
        stopping.listen()
    try:
        yield
    except Stopped as stopped:
        _end(stage, Ending(rank.STOPPED, [f"{stage}: {stopped.how()}"], _notes(stopped), 128 + stopped.signum))
    except LeashError as error:
        kind = rank.LOST if isinstance(error, RanksError) else rank.REFUSED
        _end(stage, Ending(kind, error.lines(), _notes(error), error.exit_code))
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FULL:
            raise
        _end(stage, Ending(rank.REFUSED, [_cannot(stage, error)], _notes(error), 1))
    except (MemoryError, RuntimeError) as error:
        if rank.launched_by() is not None and (type(error).__name__ in LOST_CONNECTION or GLOO in str(error)):
            _end(stage, Ending(rank.LOST, [f"{stage}: another process that shares the stage is gone"], _notes(error), 1))
        if not _is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:160]
        line = f"{stage}: out of memory{f' ({reason})' if reason else ''}: lower {LESS_MEMORY.get(stage, 'what it holds at once')}"
        _end(stage, Ending(rank.REFUSED, [line], _notes(error), 1))


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


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _end(stage: str, ending: Ending) -> NoReturn:
    _ignore_signals()
    _tell(stage, ending)
    sys.exit(ending.code)


def _ignore_signals() -> None:
    """The process is about to end: a second signal would only put a traceback beside what it says."""
    if _running() is not None:
        for signum in stopping.SIGNALS:
            signal.signal(signum, signal.SIG_IGN)


def _tell(stage: str, ending: Ending) -> None:
    """Writes the last lines of a run that failed to stderr and, under DVC, what brings the earlier outputs back.

    One of several processes leaves them to its launcher.
    """
    if rank.launched_by() is not None:
        rank.leave(ending)
        return
    lines = [*ending.lines[:-1], "; ".join([*ending.lines[-1:], *ending.notes])] if ending.lines else []
    if "DVC_STAGE" in os.environ:
        lines += restore.advice(stage)
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, a GPU (torch's OutOfMemoryError) or torch on the CPU (a RuntimeError of its allocator) found none left."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)


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

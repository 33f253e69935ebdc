"""Locks on files. A process holds one as long as it lives, however it ends: a file that is left holds nothing up."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from stages.core.errors import BusyError

_LOOK_SECONDS = 0.1


@contextlib.contextmanager
def held(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[IO[str]]:
    """Holds the lock while the block runs, and gives the file, open to be read and written; `waiting` is called where another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            _lock(path, file)
        except BlockingIOError:
            waiting()
            _lock(path, file, wait=True)
        file.seek(0)
        yield file


@contextlib.contextmanager
def held_at_once(path: Path, *, passing: bool = False) -> Iterator[bool]:
    """Holds the lock while the block runs where no other process does; gives whether it is held.

    The file of a `passing` one is removed when the block ends, since no other process waits for it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a+") as file:
            try:
                _lock(path, file)
            except BlockingIOError:
                yield False
                return
            if not _is_at(path, file):  # its holder has removed it meanwhile, and another may lock the next one
                continue
            try:
                yield True
            finally:
                if passing:
                    path.unlink(missing_ok=True)
            return


@contextlib.contextmanager
def held_alone(path: Path, what: str, patience: float, tell: Callable[[str], object]) -> Iterator[None]:
    """Holds the lock while the block runs, with this process's number in it; raises BusyError, naming the holder, where another does.

    One that is about to end has so many seconds of `patience` to do so, for which `tell` is called with a line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        end = time.monotonic() + patience
        told = False
        while True:
            try:
                _lock(path, file)
                break
            except BlockingIOError:
                holder = path.read_text(encoding="ascii").strip() or "another one"
                if not told:
                    tell(f"{path}: waits for process {holder}, which runs {what} here")
                    told = True
                if time.monotonic() >= end:
                    raise BusyError(
                        f"{path}: process {holder} runs {what} here; one run at a time is expected; "
                        "wait for it to end, or end it, and run this again"
                    ) from None
                time.sleep(_LOOK_SECONDS)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _lock(path: Path, file: IO[str], wait: bool = False) -> None:
    """Locks it; raises BlockingIOError where another holds it, an OSError with the file's name where its file system cannot lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (the file system does not lock files)", str(path)) from error


def _is_at(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False

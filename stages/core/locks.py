"""Locks on files. A process holds one as long as it lives, however it ends: a file that is left holds nothing up."""

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def held(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[IO[str]]:
    """Holds the lock while the block runs, and gives the file, open to be read and written; `waiting` is called where another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


@contextlib.contextmanager
def held_at_once(path: Path) -> Iterator[bool]:
    """Holds the lock while the block runs where no other process does; gives whether it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True

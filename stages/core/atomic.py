"""Files that appear last and whole: written under a temporary name, then renamed; several of them all or none."""

import contextlib
import errno
import glob
import os
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

import psutil

from stages.core import rank
from stages.core.stopping import undisturbed

Waiting = list[tuple[Path, Path]]
"""Temporary files and the names they will get."""

_waiting: ContextVar[Waiting | None] = ContextVar("_waiting", default=None)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes the file as `write_parts` does."""
    write_parts(path, [content])


def write_parts(path: Path, parts: Iterable[bytes]) -> None:
    """Writes the file, its parts one after another, whole or not at all: under a temporary name beside it, flushed, then renamed.

    Of several processes that share a stage the first writes; the others, which would write the same, do not.
    Raises OSError with the file's name, also where the system names none (a full disk).
    """
    if rank.number():
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with together() as waiting, _named(path), contextlib.ExitStack() as broken_off:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _clear_left(path)
        broken_off.callback(temporary.unlink, missing_ok=True)
        with temporary.open("wb") as stream:
            stream.writelines(parts)
            stream.flush()
            os.fsync(stream.fileno())
        broken_off.pop_all()
        waiting.append((temporary, path))


def _clear_left(path: Path) -> None:
    """Removes what processes that were killed while they wrote the file have left beside it."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        process = left.name.split(".")[-2]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def together() -> Iterator[Waiting]:
    """What is written within it gets its names when it is left, all at once; where any of it cannot be written, none does.

    Entered within another, it is a part of that one.
    """
    outer = _waiting.get()
    if outer is not None:
        yield outer
        return
    waiting: Waiting = []
    before = _waiting.set(waiting)
    try:
        yield waiting
        with undisturbed():
            for temporary, path in waiting:
                with _named(path):
                    temporary.replace(path)
    finally:
        _waiting.reset(before)
        for temporary, _ in waiting:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error

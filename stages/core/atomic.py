"""Files that appear last and whole: written under a temporary name, then renamed; several of them all or none."""

import contextlib
import errno
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

_waiting: ContextVar[list[tuple[Path, Path]] | None] = ContextVar("_waiting", default=None)
"""Temporary files and the names they will get, while `together` is entered."""


def write_bytes(path: Path, content: bytes) -> None:
    """Writes the file whole or not at all: under a temporary name beside it, flushed, then renamed.

    Raises OSError with the file's name, also where the system names none (a full disk).
    """
    waiting = _waiting.get()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            with temporary.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            if waiting is None:
                temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if waiting is not None:
        waiting.append((temporary, path))


@contextlib.contextmanager
def together() -> Iterator[None]:
    """What is written within it gets its names when it is left, all at once; where any of it cannot be written, none does.

    Entered within another, it is a part of that one.
    """
    if _waiting.get() is not None:
        yield
        return
    waiting: list[tuple[Path, Path]] = []
    before = _waiting.set(waiting)
    try:
        yield
        for temporary, path in waiting:
            with _named(path):
                temporary.replace(path)
    finally:
        _waiting.reset(before)
        for temporary, _ in waiting:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error

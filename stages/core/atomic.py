"""Files that appear last and whole: written under a temporary name, then renamed."""

import os
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    """Writes the file whole or not at all: under a temporary name beside it, flushed, then renamed.

    Raises OSError with the file's name, also where the system names none (a full disk).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)

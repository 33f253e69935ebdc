"""Writing what DVC and Git keep: whole files under a temporary name, then renamed; the same values give the same bytes."""

import csv
import errno
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.core.atomic import together as together
from stages.core.atomic import write_bytes as write_bytes
from stages.core.atomic import write_parts


def make_ready(*paths: Path) -> None:
    """Makes the folders of files that a run will write; raises OSError with the name of the one that cannot be made or written to."""
    for folder in {path.parent: None for path in paths}:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes one pretty JSON object, keys in the order given; a NaN or an infinity in it is our own mistake."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object per line; no rows give an empty file."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode  # json.dumps would make one for each row
    write_parts(path, ((encode(row) + "\n").encode() for row in rows))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a table with a header; floats in Python's shortest form, so that reading them gives the same number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float)), row
        writer.writerow(row)
    write_bytes(path, text.getvalue().encode())


def file_digest(path: Path) -> str:
    """sha256 of a file's content, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(fields: Mapping[str, Any]) -> str:
    """sha256 over the fields of an object, however it is laid out; the field `digest` itself, where it has one, left out."""
    own = {key: value for key, value in fields.items() if key != "digest"}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()

"""A file of JSON lines that a stage wrote, one object to a line."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.core.errors import DataError
from stages.files.intake import strict_json


def read(path: Path, stage: str, columns: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """The objects, in order; raises DataError at one that the stage does not write: one without `columns`, of these types."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); dvc repro {stage} writes it anew") from error
    for number, line in enumerate(lines, 1):
        try:
            row = strict_json.parse(line.decode())
        except ValueError:
            row = None
        if not isinstance(row, dict) or not all(isinstance(row.get(key), kind) for key, kind in (columns or {}).items()):
            raise DataError(f"{path}:{number}: not a row as {stage} writes it; dvc repro {stage} writes it anew")
        yield row

"""What the intake's tests share: files by a relative name, read as a stage does, and the lines of a refusal."""

import json
from pathlib import Path
from typing import Any

import pytest

from stages.core.errors import DataError
from stages.files.intake import sets
from stages.files.intake.row_set import RowSet

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared" / "data"
BOM = b"\xef\xbb\xbf"
NO_COLUMNS: dict[str, str | None] = {}

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data in ../shared/data is not there")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_rows(path: Path, *rows: Any) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_prompts(path: Path, form: str = "auto", columns: dict[str, str | None] = NO_COLUMNS) -> RowSet[Any]:
    return sets.read_prompts(path, form, columns)


def read_pairs(path: Path, form: str = "auto", columns: dict[str, str | None] = NO_COLUMNS) -> RowSet[Any]:
    return sets.read_pairs(path, form, columns)


def refused(read: Any, *arguments: Any) -> list[str]:
    with pytest.raises(DataError) as caught:
        read(*arguments)
    return caught.value.lines()


def places(found: RowSet[Any]) -> tuple[str, ...]:
    return tuple(map(found.place, range(len(found.numbers))))

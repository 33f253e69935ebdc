"""Rows of a Parquet file."""

import datetime
import decimal
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.core.errors import DataError
from stages.files.intake.rows import PARQUET, Row, Table, described, dotted

MAGIC = b"PAR1"
BATCH = 4096
"""Rows read at a time."""


@dataclass(frozen=True, slots=True)
class Place:
    """A row by its number, from 1: the origin of a row that stands on no line."""

    path: Path
    number: int

    def place(self, *_: str | int) -> str:
        """The path and the row."""
        return f"{self.path} row {self.number}"

    def name(self, *field: str | int) -> str:
        """The row, or its field, in a message."""
        return dotted(*field)


def read(path: Path) -> Table:
    """The rows of a Parquet file, read as they are asked for.

    Times and decimal numbers become texts, and a NaN, which data frames write for a missing number, becomes null, since the
    rows are handed on as JSON; a row with a value that JSON cannot have, such as bytes, is one with problems. Raises DataError
    where it is no Parquet file.
    """
    # Only here, since no other file needs it: a fifth of a second of the stage's start.
    import pyarrow
    import pyarrow.parquet

    failures = (pyarrow.ArrowException, OSError, ValueError, OverflowError)
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except failures as error:
        raise DataError(f"{path}: not readable as Parquet ({' '.join(str(error).split()):.200}); write it again") from None

    names = file.schema_arrow.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path}: it has the column {', '.join(map(repr, twice))} twice; each once is expected; write it with other names")

    def rows() -> Iterator[Row]:
        number = 0
        each = path.stat().st_size // max(1, file.metadata.num_rows)
        batches = file.iter_batches(BATCH)
        while True:
            try:
                batch = next(batches, None)
                values = batch.to_pylist() if batch is not None else []
            except failures as error:
                reason = " ".join(str(error).split())
                place = Place(path, number + 1)
                yield Row(
                    None,
                    place,
                    number + 1,
                    0,
                    (f"{place.place()}: not readable from here on ({reason:.200}); write the file anew, or without that column",),
                )
                return
            if not values:
                return
            for value in values:
                number += 1
                yield _row(value, Place(path, number), each)

    return Table(path, PARQUET, rows(), lambda number: Place(path, number).place())


def _row(value: dict[str, Any], place: Place, size: int) -> Row:
    plain: dict[str, Any] = {}
    problems = []
    for name, item in value.items():
        try:
            plain[name] = _plain(item)
        except TypeError as error:
            problems.append(f"{place.place()}: {name} holds {error}, which JSON cannot have; write the file without it")
    return Row(plain, place, place.number, size, tuple(problems))


def _plain(value: Any) -> Any:
    """The value as JSON can have it; raises TypeError with what is none."""
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise TypeError(f"{value}")
        return None if math.isnan(value) else value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    raise TypeError(described(value))

"""Which format a file is in: seen from its content, never from its name, unless the format is named."""

from collections.abc import Collection
from pathlib import Path

from stages.core.errors import DataError
from stages.files.intake import csv_rows, json_rows, parquet_rows, rows, utf8
from stages.files.intake.rows import CSV, JSON, JSONL, PARQUET, Table

HEAD = 1 << 16
"""Bytes of the file that are looked at first."""


def open_table(path: Path, form: str | None, key: str, columns: Collection[str], expected: str) -> Table:
    """The rows of a file in the format given, or in the one that its content is found to be in.

    `key` is what a JSON object holds the rows under, `columns` are names of which a row has at least one, `expected` says so
    in messages. An empty file has no rows. Raises DataError where the file cannot be read, or not as that format.
    """
    try:
        head = _head(path)
        is_parquet = head.startswith(parquet_rows.MAGIC)
        if form is not None and is_parquet != (form == PARQUET):
            kind = "is" if is_parquet else "is not"
            raise DataError(f"{path}: data.format is {form}, and the file {kind} Parquet by its first bytes; set it to auto")
        if not is_parquet:
            utf8.require_text(path, head)
        found = form or (PARQUET if is_parquet else _detected(path, head, key, columns))
        if not head.strip():
            return Table(path, found, iter(()), str)
        match found:
            case rows.JSON:
                return json_rows.read_document(path, key, columns, expected)
            case rows.JSONL:
                return json_rows.read_lines(path)
            case rows.CSV:
                return csv_rows.read(path, columns)
            case _:
                return parquet_rows.read(path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); a JSON, JSONL, CSV or Parquet file is expected; put it there"
        ) from None


def _head(path: Path) -> bytes:
    """The first HEAD bytes of the file, and as many more as it takes to hold anything but whitespace."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: cannot be read (it is not a regular file); a file is expected; name one")
    with path.open("rb") as stream:
        head = stream.read(HEAD)
        while not head.strip() and (more := stream.read(HEAD)):
            head += more
    return head.removeprefix(utf8.BOM)


def _detected(path: Path, head: bytes, key: str, columns: Collection[str]) -> str:
    start = head.lstrip()[:1]
    if start == b"{":
        first = next(line.text for line in utf8.read_lines(path) if line.text.strip() or line.problem)
        return JSONL if json_rows.is_lines(path, first, key, columns) else JSON
    if start in (b"", b"["):
        return JSON if start else JSONL
    first = next(iter(head.lstrip().splitlines()), b"").decode(errors="replace")
    if csv_rows.find_delimiter(first, columns):
        return CSV
    value = json_rows.lenient(first)
    return JSONL if isinstance(value, str) else CSV if value is None else JSON

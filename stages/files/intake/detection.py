"""Which format a file is in: seen from its content, never from its name, unless the format is named."""

from collections.abc import Collection
from pathlib import Path

from stages.core.errors import DataError
from stages.files.intake import csv_rows, json_rows, parquet_rows, utf8
from stages.files.intake.rows import CSV, FORMATS, JSON, JSONL, PARQUET, Table

HEAD = 1 << 16
"""Bytes of the file that are looked at first."""


def open_table(path: Path, form: str | None, key: str, columns: Collection[str], expected: str) -> Table:
    """The rows of a file in the format given, or in the one that its content is found to be in.

    `key` is what a JSON object holds the rows under, `columns` are names of which a row has at least one, `expected` says so
    in messages. An empty file has no rows. Raises DataError where the file cannot be read, or not as that format.
    """
    try:
        head = _head(path)
        found = form or _detected(path, head, key, columns)
        if found != PARQUET:
            utf8.require_text(path, head)
        if form is not None and (head.startswith(parquet_rows.MAGIC)) != (form == PARQUET):
            kind = "is" if form != PARQUET else "is not"
            raise DataError(f"{path}: data.format is {form}, and the file {kind} Parquet by its first bytes; name its format, or auto")
        if not head.strip():
            return Table(path, found, iter(()), lambda number: f"{path}:{number}", {}, None)
        match found:
            case "json":
                return json_rows.read_document(path, key, columns, expected)
            case "jsonl":
                return json_rows.read_lines(path)
            case "csv":
                return csv_rows.read(path, columns)
            case _:
                return parquet_rows.read(path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); a JSON, JSONL, CSV or Parquet file is expected; put it there"
        ) from None


def _head(path: Path) -> bytes:
    """The beginning of the file, up to the end of its first line that holds something, or HEAD bytes of it where that is more."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: cannot be read (it is not a regular file); a file is expected; name one")
    with path.open("rb") as stream:
        head = stream.read(HEAD)
        while not head.strip() and (more := stream.read(HEAD)):
            head += more
    return head.removeprefix(utf8.BOM)


def _detected(path: Path, head: bytes, key: str, columns: Collection[str]) -> str:
    assert set(FORMATS) == {JSON, JSONL, CSV, PARQUET}
    if head.startswith(parquet_rows.MAGIC):
        return PARQUET
    utf8.require_text(path, head)
    start = head.lstrip()[:1]
    if start == b"{":
        first = next(line.text for line in utf8.lines(path) if line.text.strip() or line.problem)
        return JSONL if json_rows.is_lines(path, first, key, columns) else JSON
    if start in (b"", b"["):
        return JSON if start else JSONL
    first = head.lstrip().split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")
    if csv_rows.delimiter(first, columns):
        return CSV
    value = json_rows.lenient(first)
    return JSONL if isinstance(value, str) else CSV if value is None else JSON

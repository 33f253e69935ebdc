"""Rows of JSON, where the file is one list of rows or one object that holds it, and of JSONL, where each line is a row."""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from stages.core.errors import DataError
from stages.files.intake import strict_json, utf8
from stages.files.intake.rows import JSON, JSONL, Keys, Row, Table, described, dotted, listed
from stages.files.intake.strict_json import FlawedError


@dataclass
class Document:
    """One JSON text within a file: the whole file, or a line of it; the origin of the row that it is."""

    path: Path
    text: str
    first_line: int = 1

    @cached_property
    def row_starts(self) -> Mapping[Keys, int]:
        """The offset at which each row of a list begins, and what lies no deeper."""
        return strict_json.starts(self.text, depth=2)

    @cached_property
    def line_starts(self) -> list[int]:
        """The offset at which each line begins."""
        return [0, *(feed.end() for feed in re.finditer("\n", self.text))]

    def place(self, *field: str | int) -> str:
        """path:line:column of the text, or of one of its values where it has it."""
        return self.at(_offset(_starts(self.text, 0, max(1, len(field))), field))

    def name(self, *field: str | int) -> str:
        """The row, or its field, in a message."""
        return dotted(*field)

    def at(self, offset: int) -> str:
        """path:line:column of an offset, both counted from 1."""
        line = bisect_right(self.line_starts, offset) - 1
        return f"{self.path}:{self.first_line + line}:{offset - self.line_starts[line] + 1}"


@dataclass(frozen=True, slots=True)
class Item:
    """One value within a document, at the way given: the origin of a row in a list."""

    document: Document
    keys: Keys

    def place(self, *field: str | int) -> str:
        """path:line:column of the row, or of one of its fields where it has it."""
        start = self.document.row_starts[self.keys]
        within = _starts(self.document.text, start, None)
        return self.document.at(_offset(within, field))

    def name(self, *field: str | int) -> str:
        """The row, or its field, in a message."""
        return dotted(*self.keys, *field)


def read_lines(path: Path) -> Table:
    """The rows of a JSONL file, read as they are asked for; a broken line is a row with problems."""
    return Table(path, JSONL, _lines(path), lambda number: f"{path}:{number}")


def read_document(path: Path, key: str, columns: Collection[str], expected: str) -> Table:
    """The rows of a JSON file: one list, the list under `key` of one object, or one object with one of the columns.

    Raises DataError where the file is not JSON, or of neither shape, which `expected` describes.
    """
    document = Document(path, utf8.read_text(path))
    try:
        value = strict_json.parse(document.text)
    except FlawedError as flawed:
        if not flawed.is_sound:
            raise DataError(_located(document, flawed)) from None
        return _table(document, flawed.value, key, columns, expected)._replace(
            flaws=tuple((document.at(flaw.offset), flaw.phrase) for flaw in flawed.flaws)
        )
    return _table(document, value, key, columns, expected)


def _table(document: Document, value: Any, key: str, columns: Collection[str], expected: str) -> Table:
    path = document.path
    if isinstance(value, list):
        return _list(document, value, (), {}, None)
    top = Row(value, document, 0)
    if isinstance(value, dict) and key in value:
        items = value.pop(key)
        if not isinstance(items, list):
            raise DataError(f"{document.place(key)}: {key} is {described(items)}; a list is expected; write [...]")
        return _list(document, items, (key,), value, top)
    if isinstance(value, dict) and any(column in value for column in columns):
        return Table(path, JSON, iter([top]), lambda _: top.place().rpartition(":")[0])
    found = f"an object with {listed(value)}" if isinstance(value, dict) else described(value)
    raise DataError(f"{document.place()}: the file holds {found}; {expected} is expected; rewrite it in that shape")


def is_lines(path: Path, first: str, key: str, columns: Collection[str]) -> bool:
    """Whether a file that begins with the line `first`, an object, is meant as lines and not as one JSON text.

    Where that line is an object by itself it is a row if it has a column, or if it neither holds the whole set under `key` nor
    is all there is. Where it is broken, the file is JSON if it is so as a whole, or if no other line is a row.
    """
    value = lenient(first)
    if isinstance(value, dict):
        filled = (line for line in utf8.read_lines(path) if line.text.strip() or line.problem)
        return any(column in value for column in columns) or (key not in value and len(list(islice(filled, 2))) == 2)
    if lenient(path.read_bytes().removeprefix(utf8.BOM).decode(errors="replace")) is not None:
        return False
    values = (lenient(line.text) for line in utf8.read_lines(path))
    return any(isinstance(value, dict) and any(column in value for column in columns) for value in values)


def lenient(text: str) -> Any:
    """The value of a JSON text, whatever else is wrong with it; None where its syntax is."""
    try:
        return strict_json.LENIENT.decode(text)
    except (ValueError, RecursionError):
        return None


def _list(document: Document, items: list[Any], keys: Keys, beside: Mapping[str, Any], top: Row | None) -> Table:
    def rows() -> Iterator[Row]:
        each = len(document.text) / max(1, len(items))
        for index, item in enumerate(items):
            yield Row(item, Item(document, (*keys, index)), index, int(each * (index + 1)) - int(each * index))

    def label(index: int) -> str:
        line, _, _ = document.at(document.row_starts[(*keys, index)]).rpartition(":")
        return f"{line} {dotted(*keys, index)}"

    return Table(document.path, JSON, rows(), label, beside, top)


def _lines(path: Path) -> Iterator[Row]:
    for line in utf8.read_lines(path):
        if line.problem is not None:
            yield Row(None, Document(path, "", line.number), line.number, line.size, (line.problem,))
        elif line.text and not line.text.isspace():
            document = Document(path, line.text, line.number)
            try:
                yield Row(strict_json.parse(line.text), document, line.number, line.size)
            except FlawedError as flawed:
                yield Row(None, document, line.number, line.size, tuple(_located(document, flawed)))


@lru_cache(maxsize=2)
def _starts(text: str, start: int, depth: int | None) -> Mapping[Keys, int]:
    """As strict_json has it, kept for the next problem of the same row."""
    return strict_json.starts(text, start, depth)


def _offset(starts: Mapping[Keys, int], field: Keys) -> int:
    """Where the field begins; where it is not there, what holds it."""
    while field and field not in starts:
        field = field[:-1]
    return starts[field]


def _located(document: Document, flawed: FlawedError) -> list[str]:
    return [f"{document.at(flaw.offset)}: {flaw.phrase}" for flaw in flawed.flaws]

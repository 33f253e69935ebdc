"""Rows as they lie in a user's file, with their places, before it is known whether they hold what a row must.

One reader per format; which one a file needs is seen from its content, never from its name. `json` is one object with the
rows as a list under a key, `jsonl` is one object per line.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from stages.core.errors import DataError
from stages.files import strict_json
from stages.files.strict_json import FlawedError, Keys

BOM = b"\xef\xbb\xbf"
JSON = "json"
JSONL = "jsonl"


@dataclass(frozen=True)
class Document:
    """One JSON text within a file: the whole file, or a line of it."""

    path: Path
    text: str
    first_line: int = 1

    @cached_property
    def starts(self) -> Mapping[Keys, int]:
        """The offset at which each value begins."""
        return strict_json.starts(self.text)

    @cached_property
    def line_starts(self) -> list[int]:
        """The offset at which each line begins."""
        return [0, *(feed.end() for feed in re.finditer("\n", self.text))]

    def place(self, offset: int) -> str:
        """path:line:column of an offset, both counted from 1."""
        line = bisect_right(self.line_starts, offset) - 1
        return f"{self.path}:{self.first_line + line}:{offset - self.line_starts[line] + 1}"


@dataclass(frozen=True)
class Row:
    """A value that should be a row; `problems` where it could not even be read."""

    document: Document
    value: Any
    keys: Keys = ()
    problems: tuple[str, ...] = ()

    def place(self, *field: str) -> str:
        """path:line:column of the row, or of one of its fields where the row has it."""
        starts = self.document.starts
        return self.document.place(starts.get((*self.keys, *field), starts[self.keys]))

    def name(self, *field: str) -> str:
        """What a message calls the row or its field: `pairs[3].positive` in one JSON object, `chosen` in a line."""
        row = "{}[{}]".format(*self.keys) if self.keys else ""
        return ".".join(part for part in (row, *field) if part) or "the row"

    def label(self) -> str:
        """The row in a list of rows: `path:line`, and its index where lines do not tell rows apart."""
        if not self.keys:
            return f"{self.document.path}:{self.document.first_line}"
        line, _, _ = self.place().rpartition(":")
        return f"{line} {self.name()}"


class Table(NamedTuple):
    """The rows of a file, the format they were found in, and what stands beside them at the top of a JSON object."""

    format: str
    rows: list[Row]
    beside: Mapping[str, Any]
    top: Row | None


def read(path: Path, key: str, columns: tuple[str, ...], expected: str) -> Table:
    """The rows of a file: the list under `key` of one JSON object, or a line each with one of `columns`.

    An empty file has no rows. Raises DataError for a file that cannot be read, is not UTF-8, or is of neither shape, which
    `expected` describes; a broken line of JSONL is a row with problems, so that all of them can be told at once.
    """
    text = _text(path)
    if not text.strip():
        return Table(JSONL, [], {}, None)
    document = Document(path, text)
    try:
        value = strict_json.parse(text)
    except FlawedError as flawed:
        if _is_jsonl(text, key, columns):
            return Table(JSONL, list(_lines(document)), {}, None)
        raise DataError(_located(document, flawed)) from None
    if isinstance(value, dict) and key in value:
        return _json(document, value, key)
    if isinstance(value, dict) and any(column in value for column in columns):
        return Table(JSONL, [Row(document, value)], {}, None)
    found = f"an object with {listed(value)}" if isinstance(value, dict) else described(value)
    raise DataError(f"{document.place(document.starts[()])}: the file holds {found}; {expected} is expected; rewrite it in that shape")


def read_lines(path: Path) -> list[Row]:
    """The rows of a JSONL file that a stage wrote."""
    return list(_lines(Document(path, _text(path))))


def described(value: Any) -> str:
    """What a value is, for a message: `null`, `a number (3)`, `a list`."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            shown = str(value)
            return f"a number ({shown if len(shown) <= 20 else shown[:20] + '...'})"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


def listed(row: Mapping[str, Any]) -> str:
    """The keys of a row, for a message."""
    return "the keys " + ", ".join(row) if row else "no keys"


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); a UTF-8 file is expected; put it there") from None
    cure = "the file must be UTF-8; convert it, for example with iconv"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content[:4]:
        raise DataError(f"{path}:1:1: the file is UTF-16 or UTF-32; {cure}")
    content = content.removeprefix(BOM)
    try:
        return content.decode()
    except UnicodeDecodeError:
        pass
    problems = []
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            column = len(line[: error.start].decode()) + 1
            byte = f"byte 0x{line[error.start]:02x} (byte {error.start + 1} of the line)"
            problems.append(f"{path}:{number}:{column}: {byte} is not UTF-8; {cure}")
    raise DataError(problems)


def _json(document: Document, value: Mapping[str, Any], key: str) -> Table:
    top = Row(document, value)
    items = value[key]
    if not isinstance(items, list):
        raise DataError(f"{top.place(key)}: {key} is {described(items)}; a list is expected; write [...]")
    rows = [Row(document, item, (key, index)) for index, item in enumerate(items)]
    return Table(JSON, rows, {name: other for name, other in value.items() if name != key}, top)


def _lines(document: Document) -> Iterator[Row]:
    # By line feeds alone: str.splitlines would cut at U+2028 and U+0085, which may stand inside a JSON text.
    for number, text in enumerate(document.text.split("\n"), document.first_line):
        if not text.strip():
            continue
        line = Document(document.path, text, number)
        try:
            yield Row(line, strict_json.parse(text))
        except FlawedError as flawed:
            yield Row(line, None, problems=tuple(_located(line, flawed)))


def _is_jsonl(text: str, key: str, columns: tuple[str, ...]) -> bool:
    """Whether a text that is no single JSON value is meant as lines: the first is an object by itself, or another is a row."""
    first, *others = (line for line in text.split("\n") if line.strip())
    value = _value(first)
    if isinstance(value, dict):
        return key not in value
    values = map(_value, others)
    return any(isinstance(value, dict) and any(column in value for column in columns) for value in values)


def _value(line: str) -> Any:
    try:
        return strict_json.LENIENT.decode(line)
    except (ValueError, RecursionError):
        return None


def _located(document: Document, flawed: FlawedError) -> list[str]:
    return [f"{document.place(flaw.offset)}: {flaw.phrase}" for flaw in flawed.flaws]

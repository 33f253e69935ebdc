"""Rows of a CSV file: a header, then a record a row, all of them texts; quoted as RFC 4180 has it."""

import csv
import io
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.core.errors import DataError
from stages.files.intake import utf8
from stages.files.intake.rows import CSV, Row, Table, dotted

SHOWN = 80
"""How many characters of a header a message repeats."""

DELIMITERS = ",;\t"
"""What may stand between fields; the header tells which."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it was read: the origin of its row."""

    path: Path
    line: int
    text: str
    header: Sequence[str]
    delimiter: str

    def place(self, *field: str | int) -> str:
        """path:line:column of the record, or of one of its fields."""
        index = self.header.index(str(field[0])) if field and field[0] in self.header else 0
        # a quoted field may hold delimiters and line ends, and its quotes doubled
        fields = list(re.finditer(rf'(?:"(?:[^"]+|"")*"|[^{self.delimiter}\r\n])*(?:{self.delimiter}|\r?\n|\r|\Z)', self.text))
        before = self.text[: fields[index].start()] if index < len(fields) else ""
        ends = list(re.finditer(r"\r\n|\r|\n", before))
        return f"{self.path}:{self.line + len(ends)}:{len(before) - (ends[-1].end() if ends else 0) + 1}"

    def name(self, *field: str | int) -> str:
        """The row, or its field, in a message."""
        return dotted(*field)


def delimiter(header: str, columns: Collection[str]) -> str | None:
    """What stands between the fields of a header line that names one of the columns; None where it names none."""
    for candidate in DELIMITERS:
        try:
            names = next(csv.reader([header], delimiter=candidate), [])
        except csv.Error:
            continue
        if any(name.strip() in columns for name in names):
            return candidate
    return None


def read(path: Path, columns: Collection[str]) -> Table:
    """The rows of a CSV file, read as they are asked for.

    Raises DataError where it is not UTF-8, or its header names a column twice or none of the columns; a broken record is a
    row with problems, and where its quotes are broken the last one, since nothing tells where the next begins.
    """
    csv.field_size_limit(sys.maxsize)  # the module's own limit is 128 KB
    stream = io.StringIO(utf8.text(path), newline="")
    first = 1
    while (header_line := stream.readline()) and header_line.isspace():
        first += 1
    between = delimiter(header_line, columns)
    if between is None:
        shown = header_line.strip()
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
        raise DataError(
            f"{path}:{first}:1: the first line is {shown!r}; JSON, or a CSV header that names {' or '.join(columns)}, is expected; "
            "rename a column, or name one with data.columns"
        )
    header = [name.strip() for name in next(csv.reader([header_line], delimiter=between))]
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path}:{first}:1: the header names {', '.join(map(repr, twice))} twice; each column once is expected; rename one")
    return Table(path, CSV, _records(path, stream, first + 1, header, between), lambda line: f"{path}:{line}", {}, None)


def _records(path: Path, stream: io.StringIO, line: int, header: Sequence[str], between: str) -> Iterator[Row]:
    taken: list[str] = []

    def physical() -> Iterator[str]:
        for line in stream:
            taken.append(line)
            yield line

    reader = csv.reader(physical(), delimiter=between, strict=True)
    while True:
        problems: tuple[str, ...] = ()
        fields: list[str] = []
        broken = None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            broken = str(error)
        record = Record(path, line, "".join(taken), header, between)
        line += len(taken)
        taken.clear()
        if broken is not None:
            problems = (f"{path}:{record.line}:1: broken CSV: {broken}; a quote inside a quoted field is written twice; mend the quotes",)
        elif not fields:  # a blank line; an empty text is quoted
            continue
        elif len(fields) != len(header):
            problems = (
                f"{record.place()}: the record has {len(fields)} fields, and the header {len(header)}; as many are expected; "
                "quote a text that holds the delimiter or a line end",
            )
        value = dict(zip(header, fields, strict=False))
        yield Row(value, record, record.line, len(record.text), problems)
        if broken is not None:
            return

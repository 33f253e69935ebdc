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

csv.field_size_limit(sys.maxsize)  # of the whole process; the module's own limit of 128 KB is below what a text may be

SHOWN = 80
"""How many characters of a header a message repeats."""

_LINE_END = re.compile(r"\r\n|\r|\n")

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
        starts = _field_starts(self.text, self.delimiter)
        before = self.text[: starts[index]] if index < len(starts) else ""
        ends = list(_LINE_END.finditer(before))
        return f"{self.path}:{self.line + len(ends)}:{len(before) - (ends[-1].end() if ends else 0) + 1}"

    def name(self, *field: str | int) -> str:
        """The row, or its field, in a message."""
        return dotted(*field)


def find_delimiter(header: str, columns: Collection[str]) -> str | None:
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
    stream = io.StringIO(utf8.read_text(path), newline="")
    first = 1
    while (header_line := stream.readline()) and header_line.isspace():
        first += 1
    delimiter = find_delimiter(header_line, columns)
    if delimiter is None:
        shown = header_line.strip()
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
        raise DataError(
            f"{path}:{first}:1: the first line is {shown!r}; JSON, or a CSV header that names {' or '.join(columns)}, is expected; "
            "rename a column, or name one with data.columns"
        )
    header = [name.strip() for name in next(csv.reader([header_line], delimiter=delimiter))]
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path}:{first}:1: the header names {', '.join(map(repr, twice))} twice; each column once is expected; rename one")
    return Table(path, CSV, _records(path, stream, first + 1, header, delimiter), lambda line: f"{path}:{line}")


def _field_starts(text: str, delimiter: str) -> list[int]:
    """Where each field of a record begins; as the module reads it, a quote opens only at a field's beginning."""
    between = re.compile(f"{re.escape(delimiter)}|\r|\n")
    starts, place = [0], 0
    while True:
        if text.startswith('"', place):
            close = text.find('"', place + 1)
            while close >= 0 and text.startswith('""', close):
                close = text.find('"', close + 2)
            if close < 0:
                return starts
            place = close + 1
        found = between.search(text, place)
        if found is None or found[0] != delimiter:
            return starts
        place = found.end()
        starts.append(place)


def _records(path: Path, stream: io.StringIO, first: int, header: Sequence[str], delimiter: str) -> Iterator[Row]:
    taken: list[str] = []

    def physical_lines() -> Iterator[str]:
        for line in stream:
            taken.append(line)
            yield line

    reader = csv.reader(physical_lines(), delimiter=delimiter, strict=True)
    number = first
    while True:
        try:
            fields, broken = next(reader, None), ""
        except csv.Error as error:
            fields, broken = [], str(error)
        if fields is None:
            return
        record = Record(path, number, "".join(taken), header, delimiter)
        number += len(taken)
        taken.clear()
        if broken:
            problem = f"{path}:{record.line}:1: broken CSV: {broken}; a quote in a quoted field is doubled, and none stands after its end"
            yield Row(None, record, record.line, len(record.text), (f"{problem}; mend the quotes",))
            return  # nothing tells where the next record begins
        if record.text.isspace():
            continue
        problems: tuple[str, ...] = ()
        if len(fields) != len(header):
            problems = (
                f"{record.place()}: the record has {len(fields)} of the header's {len(header)} fields; as many are expected; "
                "quote a text that holds the delimiter or a line end",
            )
        yield Row(dict(zip(header, fields, strict=False)), record, record.line, len(record.text), problems)

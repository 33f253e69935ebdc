"""Rows as they lie in a user's file, with their places, before it is known whether they hold what a row must."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from stages.files.records import NOTHING

SHOWN, MOST = 40, 20
"""Of the keys of a row, how many characters a message repeats of each, and of how many."""

Keys = tuple[str | int, ...]
"""The way to a value from the top: keys of objects and indices of lists."""

JSON, JSONL, CSV, PARQUET = "json", "jsonl", "csv", "parquet"
FORMATS = (JSON, JSONL, CSV, PARQUET)


class Origin(Protocol):
    """Where a row was read from."""

    def place(self, *field: str | int) -> str:
        """`path:line:column` of the row, or of one of its fields where the row has it."""

    def name(self, *field: str | int) -> str:
        """What a message calls the row or its field: `pairs[3].positive` in one JSON object, `chosen` in a line."""


class Row(NamedTuple):
    """A value that should be a row; `problems` where it could not even be read."""

    value: Any
    origin: Origin
    number: int
    """Its line, or its index where lines do not tell rows apart; what Table.label takes."""
    size: int = 0
    """Bytes of the file that were read for it, or characters, which a bar of progress shows; 0 where that is not known."""
    problems: tuple[str, ...] = ()

    def place(self, *field: str | int) -> str:
        """The place of the row or of one of its fields."""
        return self.origin.place(*field)

    def name(self, *field: str | int) -> str:
        """The row or its field, in a message."""
        return self.origin.name(*field)


class Table(NamedTuple):
    """A file in which rows were found."""

    path: Path
    format: str
    rows: Iterator[Row]
    label: Callable[[int], str]
    """A row in a list of rows, from its number: `path:line`, with its index where lines do not tell rows apart."""
    beside: Mapping[str, Any] = NOTHING
    """What stands beside the rows, at the top of one JSON object."""
    top: Row | None = None
    """That object; None where there is none."""
    flaws: tuple[tuple[str, str], ...] = ()
    """Of a whole document, what is not strict JSON in it: place and phrase of each."""


def dotted(*parts: str | int) -> str:
    """The way to a value, as messages write it: `chosen[2].content`."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the row"


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
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a value of type {type(value).__name__}"


def listed(row: Mapping[str, Any]) -> str:
    """The keys of a row, for a message."""
    keys = [key if len(key) <= SHOWN else f"{key[:SHOWN]}..." for key in map(str, islice(row, MOST))]
    more = f" and {len(row) - MOST} more" if len(row) > MOST else ""
    return f"the keys {', '.join(keys)}{more}" if row else "no keys"

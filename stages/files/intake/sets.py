"""The prompts and the pairs of a user's file: what each row holds, or every problem of the file at once.

The shapes, in any format that can have them: {"prompts": [texts]}; rows with `prompt`; {"trait_name": ..., "pairs":
[{"positive", "negative"}]}; rows with `chosen`, `rejected` and perhaps `prompt`. A text is a string or a list of messages.
Strings that read as transcripts are conversations, where the first of their column does so; a row that differs is refused.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.core.errors import DataError
from stages.core.progress import bar
from stages.files.intake import shapes
from stages.files.intake.detection import open_table
from stages.files.intake.rows import FORMATS, JSON, Row, Table, described, listed
from stages.files.intake.shapes import ShapeError
from stages.files.intake.texts import EMPTY, Reader, is_plain, string_problem
from stages.files.records import CHOSEN, NOTHING, PROMPT, REJECTED, TRAIT_NAME, Pair, Prompt, Text
from stages.files.transcript import is_transcript

AUTO = "auto"
TRANSCRIPTS = "transcripts"
STRINGS = "strings"
MESSAGES = "messages"

SIDES = ((CHOSEN, REJECTED), ("positive", "negative"))
"""What the better and the worse side may be called, where data.columns does not say."""

PROMPT_SHAPES = 'an object {"prompts": [texts]} or rows with prompt'
PAIR_SHAPES = 'an object {"trait_name": text, "pairs": [{"positive": text, "negative": text}]} or rows with chosen and rejected'

Columns = Mapping[str, str | None]
"""For prompt, chosen and rejected: what a file calls it; null for the names that are known."""


@dataclass(frozen=True)
class RowSet:
    """What a file holds beside its rows."""

    path: Path
    format: str
    texts: str
    """strings, messages or transcripts; several of them with commas."""
    numbers: Sequence[int]
    """Of each row, what `label` takes."""
    label: Callable[[int], str]
    remarks: tuple[str, ...]
    """What a user should know of how the file was read: keys that nothing reads, columns that are kept."""
    mapped: frozenset[str]
    """The keys of data.columns whose columns the file has."""
    rows: Sequence[Prompt | Pair]

    def place(self, index: int) -> str:
        """Where the row at this index stands in the file."""
        return self.label(self.numbers[index])


@dataclass(frozen=True)
class PromptSet(RowSet):
    """The prompts of a file, in its order."""

    rows: list[Prompt]


@dataclass(frozen=True)
class PairSet(RowSet):
    """The pairs of a file, in its order."""

    rows: list[Pair]
    implicit_prompts: int
    """Pairs whose prompt is what both sides begin with."""

    @property
    def trait_name(self) -> str | None:
        """The trait that all pairs differ in; None where they name none, or not the same one."""
        names = {pair.trait_name for pair in self.rows}
        return names.pop() if len(names) == 1 else None


def read_prompts(path: Path, form: str = AUTO, columns: Columns = NOTHING) -> PromptSet:
    """The prompts of a user's file; raises DataError with all that is wrong with it."""
    reading = _Reading(path, form, "prompts", columns, (PROMPT,), PROMPT_SHAPES)
    rows: list[Prompt] = []
    for row in reading.rows():
        # a text in a list, or a string on a line
        alone = not isinstance(row.value, dict) if reading.table.format == JSON else isinstance(row.value, str)
        name = PROMPT if alone else reading.names(row)[PROMPT]
        if not alone and reading.lacks(row, (name,)):
            continue
        text = reading.text(row, PROMPT, *(() if alone else (name,)), answered=False)
        if text is None:
            continue
        try:
            rows.append(Prompt(shapes.prompt(text), NOTHING if alone else reading.further(row, {PROMPT: name})))
        except ShapeError as error:
            reading.refuse(row, error, *(() if alone else (name,)))
    return PromptSet(**reading.finished(rows, "prompt set contains no prompts"), rows=rows)


def read_pairs(path: Path, form: str = AUTO, columns: Columns = NOTHING) -> PairSet:
    """The pairs of a user's file; raises DataError with all that is wrong with it."""
    reading = _Reading(path, form, "pairs", columns, (CHOSEN, REJECTED), PAIR_SHAPES)
    top, beside = reading.table.top, reading.table.beside
    trait_name = reading.trait_name(top, beside[TRAIT_NAME]) if top is not None and TRAIT_NAME in beside else None
    rows: list[Pair] = []
    implicit = 0
    for row in reading.rows():
        names = reading.names(row)
        if reading.lacks(row, (names[CHOSEN], names[REJECTED])):
            continue
        value, known = row.value, len(reading.problems)
        own = reading.trait_name(row, value[TRAIT_NAME]) if TRAIT_NAME in value else trait_name
        empty = f"pair set {own or path} contains an empty positive or negative prompt; write a text or remove the pair"
        given = reading.text(row, PROMPT, names[PROMPT], answered=False) if names[PROMPT] in value else None
        chosen, rejected = (reading.text(row, side, names[side], empty=empty, answered=True) for side in (CHOSEN, REJECTED))
        further = reading.further(row, {**names, TRAIT_NAME: TRAIT_NAME})
        if len(reading.problems) > known or chosen is None or rejected is None:
            continue
        try:
            prompt, chosen, rejected, shared = shapes.sides(given, chosen, rejected)
        except ShapeError as error:
            reading.refuse(row, error, names[error.column])
            continue
        implicit += shared
        rows.append(Pair(prompt, chosen, rejected, own, further))
    if reading.columns_kept and not any(pair.prompt is not None for pair in rows):
        reading.remarks.append(
            f"no pair has a prompt; where a further column ({', '.join(reading.columns_kept)}) is it, data.columns.prompt names it"
        )
    return PairSet(**reading.finished(rows, f"pair set {trait_name or path} contains no pairs"), rows=rows, implicit_prompts=implicit)


class _Reading:
    """One file being read: its columns' names, what its strings are, the problems so far, and the places of its rows."""

    def __init__(self, path: Path, form: str, key: str, columns: Columns, needed: Sequence[str], expected: str) -> None:
        self.columns = {role: name for role, name in columns.items() if name is not None}
        mapped = (self.columns[role] for role in needed if role in self.columns)
        known = (*mapped, *needed, *(SIDES[1] if PROMPT not in needed else ()))
        self.table: Table = open_table(path, form if form in FORMATS else None, key, known, expected)
        self.form = form
        self.key = key
        self.needed = needed
        self.problems: list[str] = []
        self.reader = Reader()
        self.numbers = array("q")
        self.mapped: dict[str, str] | None = None
        self.kinds: set[str] = set()
        self.remarks: list[str] = []
        self.columns_kept: dict[str, None] = {}
        self.moved: set[str] = set()
        """Columns that are kept under another name, since data.columns names another in their stead."""
        self.lacking: dict[tuple[str, ...], list[int]] = {}
        """Where in the problems each set of absent columns is told of, and how many more rows it is absent from."""
        self.taken_as_strings = 0
        """Strings that read as transcripts, and are not taken for those since the format is named."""
        self.strings: dict[str, bool] = {}
        """Whether the strings of prompts, and those of sides, are transcripts."""

    def rows(self) -> Iterator[Row]:
        """Every row that could be read; the problems of the others are kept."""
        with bar(self.table.path.stat().st_size, f"reading {self.key}", unit="B") as advance:
            for row in self.table.rows:
                self.numbers.append(row.number)
                advance(row.size)
                if row.problems:
                    self.problems += row.problems
                else:
                    yield row

    def names(self, row: Row) -> dict[str, str]:
        """What the row calls prompt, chosen and rejected; a name of data.columns holds for a file whose first row has it."""
        value = row.value if isinstance(row.value, dict) else {}
        if self.mapped is None:
            self.mapped = {role: name for role, name in self.columns.items() if name in value}
        style = max(SIDES, key=lambda style: sum(name in value for name in style))  # the first of equals
        return {PROMPT: PROMPT, CHOSEN: style[0], REJECTED: style[1], **self.mapped}

    def lacks(self, row: Row, names: Sequence[str]) -> bool:
        """Whether the row is no object with these columns; the problem is kept."""
        expected = f"an object with {' and '.join(names)} is expected"
        if not isinstance(row.value, dict):
            self.problems.append(f"{row.place()}: {row.name()} is {described(row.value)}; {expected}; write it as one, or remove it")
            return True
        absent = tuple(name for name in names if name not in row.value)
        if absent and absent in self.lacking:
            self.lacking[absent][1] += 1
        elif absent:
            self.lacking[absent] = [len(self.problems), 0]
            what = f"{' and '.join(map(row.name, absent))} {'is' if len(absent) == 1 else 'are'} missing"
            advice = "add it, rename a key, or name another with data.columns"
            self.problems.append(f"{row.place()}: {what}, the row has {listed(row.value)}; {expected}; {advice}")
        return bool(absent)

    def text(self, row: Row, role: str, *field: str, empty: str = EMPTY, answered: bool) -> Text | None:
        """The text at a field of the row, a transcript as its turns; None where it has problems, which are kept."""
        value = row.value[field[0]] if field else row.value
        column = role if role == PROMPT else "side"
        if self.strings.get(column) is False and not self.strings.get(PROMPT) and isinstance(value, str) and is_plain(value):
            self.kinds.add(STRINGS)
            return value  # as most are: a transcript has line ends
        text = self.reader.text(row, value, *field, problems=self.problems, empty=empty)
        if text is None:
            return None
        if not isinstance(text, str):
            self.kinds.add(MESSAGES)
            return text
        found = is_transcript(text)
        if found and self.form in FORMATS:
            self.taken_as_strings += 1
            found = False
        # Sides that follow a transcript may be bare answers.
        expected = self.strings.setdefault(
            column, found or (self.form == TRANSCRIPTS and not (column == "side" and PROMPT in self.strings))
        )
        if found != expected:
            self._refuse_kind(row, field, found)
            return None
        self.kinds.add(TRANSCRIPTS if found else STRINGS)
        if not found:
            return text.strip() if column == "side" and self.strings.get(PROMPT) else text
        try:
            return shapes.conversation_of(text, role, answered=answered)
        except ShapeError as error:
            self.refuse(row, error, *field)
            return None

    def further(self, row: Row, names: Mapping[str, str]) -> Mapping[str, Any]:
        """The columns of the row beside those named; one called as ours are, which data.columns reads another for, gets a new name."""
        extra = {}
        sides = {name for style in SIDES for name in style} if CHOSEN in names else set()
        for key, value in row.value.items():
            if key in names.values():
                continue
            if key in sides and not {CHOSEN, REJECTED} & set(self.mapped or ()):
                self.problems.append(
                    f"{row.place(key)}: {row.name(key)} stands beside {names[CHOSEN]} and {names[REJECTED]}; a side has one name; "
                    "remove or rename it, or say with data.columns which are read"
                )
            if key in names:
                self.moved.add(key)
                extra[f"source_{key}"] = value
            else:
                extra[key] = value
        if not extra:
            return NOTHING
        self.columns_kept.update(dict.fromkeys(extra))
        return extra

    def trait_name(self, row: Row, value: Any) -> str | None:
        """The trait that a row or a set names; None where it has problems, which are kept."""
        found = string_problem(value, EMPTY) if isinstance(value, str) else f"is {described(value)}; a text is expected; put one there"
        if found is not None:
            self.problems.append(f"{row.place(TRAIT_NAME)}: {row.name(TRAIT_NAME)} {found}")
            return None
        return str(value)

    def refuse(self, row: Row, error: ShapeError, *field: str) -> None:
        """Keeps the problem of a text that is not what its column says."""
        self.problems.append(f"{row.place(*field)}: {row.name(*field)} {error.phrase}")

    def finished(self, rows: Sequence[Any], none: str) -> dict[str, Any]:
        """What the set holds beside its rows; raises DataError where there were problems, or no row."""
        table = self.table
        if not self.numbers:
            where = table.top.place(self.key) if table.top is not None else str(table.path)
            empty = "" if table.path.stat().st_size else ", the file is empty"
            self.problems.append(f"{where}: {none}{empty}; at least one is expected; add some")
        for place, more in self.lacking.values():
            self.problems[place] += f"; so in {more} more rows" if more else ""
        told = {problem.partition(": ")[0] for problem in table.problems}
        problems = [*table.problems, *(problem for problem in self.problems if problem.partition(": ")[0] not in told)]
        if problems:
            raise DataError(problems)
        assert len(rows) == len(self.numbers)
        return {
            "path": table.path,
            "format": table.format,
            "texts": ", ".join(kind for kind in (STRINGS, MESSAGES, TRANSCRIPTS) if kind in self.kinds),
            "numbers": self.numbers,
            "label": table.label,
            "remarks": (*self._remarks(), *self.remarks),
            "mapped": frozenset(self.mapped or ()),
        }

    def _remarks(self) -> Iterator[str]:
        unread = [key for key in self.table.beside if key != TRAIT_NAME or PROMPT in self.needed]
        for key in (*unread, *sorted(f"{key} of messages" for key in self.reader.unread)):
            yield f"{key} is not a key that is read here; its value changes nothing"
        if self.columns_kept:
            yield f"further columns, kept beside each row: {', '.join(self.columns_kept)}"
        for key in sorted(self.moved):
            yield f"its column {key} is kept as source_{key}, since data.columns names another"
        if self.taken_as_strings:
            yield f"{self.taken_as_strings} strings read as transcripts, and are taken as they are, since data.format is {self.form}"

    def _refuse_kind(self, row: Row, field: tuple[str, ...], found: bool) -> None:
        if self.form == TRANSCRIPTS:
            what = (
                "is no transcript; one that begins with Human: is expected, since data.format says so; mend it, or set data.format to auto"
            )
        else:
            what = "reads as a transcript, and the first" if found else "is no transcript, and the first"
            what += f" of its column {'does not' if found else 'is one'}"
            what += "; all or none are expected; mend it, or set data.format, for both files, to take strings as they are"
        self.problems.append(f"{row.place(*field)}: {row.name(*field)} {what}")

"""One file being read: its columns' names, what its strings are, and all that is wrong with its rows.

Strings that read as transcripts are conversations, where the first of their column does so; a row that differs is refused.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.core.errors import DataError, SettingsError
from stages.core.progress import bar
from stages.files import transcript
from stages.files.intake import shapes
from stages.files.intake.detection import open_table
from stages.files.intake.row_set import RowSet, T
from stages.files.intake.rows import FORMATS, Row, described, listed
from stages.files.intake.shapes import ShapeError
from stages.files.intake.texts import EMPTY, Reader, is_plain, string_problem
from stages.files.records import CHOSEN, NOTHING, PROMPT, REJECTED, TRAIT_NAME, Text
from stages.files.transcript import is_transcript

TRANSCRIPTS = "transcripts"
STRINGS = "strings"
MESSAGES = "messages"

SIDES = ((CHOSEN, REJECTED), ("positive", "negative"))
"""What the better and the worse side may be called, where data.columns does not say."""

OURS = {PROMPT: PROMPT, CHOSEN: CHOSEN, REJECTED: REJECTED}
"""What most rows call them."""


class Reading:
    """Reads a file row by row, and keeps what is wrong with it, to be told of at once."""

    def __init__(self, path: Path, form: str, key: str, roles: Sequence[str], columns: Mapping[str, str | None], expected: str) -> None:
        self.columns = {role: name for role in roles if (name := columns.get(role)) is not None}
        self.roles = roles
        self._require_names_apart()
        needed = (CHOSEN, REJECTED) if CHOSEN in roles else (PROMPT,)
        known = (*(self.columns[role] for role in needed if role in self.columns), *needed, *(SIDES[1] if CHOSEN in roles else ()))
        self.table = open_table(path, form if form in FORMATS else None, key, known, expected)
        self.form = form
        self.key = key
        self.reader = Reader()
        self.refuse = self.reader.refuse
        self.numbers = array("q")
        self.remarks: list[str] = []
        self.further_columns: dict[str, None] = {}
        """Their names, in the order in which they were met."""
        self._kinds: set[str] = set()
        self._mapped: set[str] = set()
        """The keys of data.columns that a row was read by."""
        self._unmapped: dict[str, str] = {}
        """The others, where a row has the column that is known without data.columns, with the first such place."""
        self._moved: dict[tuple[str, str], None] = {}
        """Columns that are kept under another name, since data.columns names another in their stead, with that name."""
        self._lacking: dict[tuple[str, ...], list[int]] = {}
        """Where in the problems each set of absent columns is told of, and how many more rows it is absent from."""
        self._taken_as_strings = 0
        """Strings that read as transcripts, and are not taken for those since the format is named."""
        self._transcripts: dict[str, bool] = {}
        """Whether the strings of prompts, and those of sides, are transcripts."""

    def rows(self) -> Iterator[Row]:
        """Every row that could be read; the problems of the others are kept."""
        with bar(self.table.path.stat().st_size, f"reading {self.key}", unit="B") as advance:
            for row in self.table.rows:
                self.numbers.append(row.number)
                advance(row.size)
                if row.problems:
                    self.reader.problems += row.problems
                else:
                    yield row

    def names(self, row: Row) -> dict[str, str]:
        """What the row calls each role: by data.columns where it has that column."""
        value = row.value if isinstance(row.value, dict) else {}
        if not self.columns and CHOSEN in self.roles and CHOSEN in value and REJECTED in value:
            return OURS
        style = max(SIDES, key=lambda style: sum(name in value for name in style))  # the first of equals
        names = {PROMPT: PROMPT} if CHOSEN not in self.roles else {PROMPT: PROMPT, CHOSEN: style[0], REJECTED: style[1]}
        for role, name in self.columns.items():
            if name in value:
                names[role] = name
                self._mapped.add(role)
            elif names[role] in value and role not in self._unmapped:
                self._unmapped[role] = row.place(names[role])
        return names

    def lacks(self, row: Row, names: Sequence[str]) -> bool:
        """Whether the row is no object with these columns; the problem is kept."""
        expected = f"an object with {' and '.join(names)} is expected"
        if not isinstance(row.value, dict):
            self.refuse(row, found=f"is {described(row.value)}; {expected}; write it as one, or remove it")
            return True
        absent = tuple(name for name in names if name not in row.value)
        if absent in self._lacking:
            self._lacking[absent][1] += 1
        elif absent:
            self._lacking[absent] = [len(self.reader.problems), 0]
            what = f"{' and '.join(map(row.name, absent))} {'is' if len(absent) == 1 else 'are'} missing"
            advice = "add it, rename a key, or name another with data.columns"
            self.reader.problems.append(f"{row.place()}: {what}, the row has {listed(row.value)}; {expected}; {advice}")
        return bool(absent)

    def text(self, row: Row, role: str, *field: str, empty: str = EMPTY, follows: bool = False) -> Text | None:
        """The text at a field of the row, a transcript as its turns; None where it has problems, which are kept.

        Where it `follows` a transcript, a string that is none is the next turn, or turns.
        """
        value = row.value[field[0]] if field else row.value
        column = role if role == PROMPT else "side"
        # As most are. A transcript is on several lines.
        if self._transcripts.get(column) is False and not follows and isinstance(value, str) and is_plain(value):
            self._kinds.add(STRINGS)
            return value
        text = self.reader.text(row, value, *field, empty=empty)
        if text is None:
            return None
        if not isinstance(text, str):
            self._kinds.add(MESSAGES)
            return text
        found = is_transcript(text)
        if found and self.form in FORMATS:
            self._taken_as_strings += 1
            found = False
        # Sides that follow a transcript may be bare answers.
        forced = self.form == TRANSCRIPTS and not follows
        if found != self._transcripts.setdefault(column, found or forced):
            self.refuse(row, *field, found=self._of_another_kind(found))
            return None
        self._kinds.add(TRANSCRIPTS if found else STRINGS)
        if not found and not follows:
            return text
        try:
            return shapes.conversation_of(text if found else transcript.OPEN_ANSWER + text, role)
        except ShapeError as error:
            self.refuse(row, *field, found=error.phrase)
            return None

    def further(self, row: Row, names: Mapping[str, str]) -> Mapping[str, Any]:
        """The columns of the row beside those named; one called as ours are, which data.columns reads another for, gets a new name."""
        extra = {}
        sides = {name for style in SIDES for name in style} if CHOSEN in names else set()
        for key, value in row.value.items():
            if key in names.values():
                continue
            if key in sides and names[CHOSEN] in sides and names[REJECTED] in sides:
                advice = "remove or rename it, or say with data.columns which are read"
                self.refuse(row, key, found=f"stands beside {names[CHOSEN]} and {names[REJECTED]}; a side stands in one column; {advice}")
            name = key
            if key in names:
                while name in row.value:
                    name = f"source_{name}"
                self._moved[key, name] = None
            extra[name] = value
        if not extra:
            return NOTHING
        self.further_columns.update(dict.fromkeys(extra))
        return extra

    def trait_name(self, row: Row, value: Any) -> str | None:
        """The trait that a row or a set names; None where it has problems, which are kept."""
        expected = "a text is expected; put one there or remove the key"
        found = string_problem(value, expected) if isinstance(value, str) else f"is {described(value)}; {expected}"
        if found is not None:
            self.refuse(row, TRAIT_NAME, found=found)
            return None
        return str(value)

    def finish(self, none: str) -> None:
        """Raises DataError where the file had problems, or no row, of which `none` tells."""
        table, problems = self.table, self.reader.problems
        if not self.numbers:
            where = table.top.place(self.key) if table.top is not None else str(table.path)
            empty = "" if table.path.stat().st_size else ", the file is empty"
            problems.append(f"{where}: {none}{empty}; at least one is expected; add some")
        for index, more in self._lacking.values():
            problems[index] += f"; so in {more} more rows" if more else ""
        for role in sorted(self._mapped & set(self._unmapped)):
            lacking = f"the row has no {self.columns[role]}, which data.columns.{role} names and other rows have"
            problems.append(f"{self._unmapped[role]}: {lacking}; one name in every row is expected; rename the column")
        told = tuple(f"{place}: " for place, _ in table.flaws)  # what is flawed JSON may be no text either
        every = [f"{place}: {phrase}" for place, phrase in table.flaws] + [line for line in problems if not line.startswith(told)]
        if every:
            raise DataError(every)

    def row_set(self, rows: list[T], implicit_prompts: int = 0) -> RowSet[T]:
        """The rows that were made of the file's, with how it was read."""
        assert len(rows) == len(self.numbers)
        return RowSet(
            rows,
            path=self.table.path,
            format=self.table.format,
            texts=", ".join(kind for kind in (STRINGS, MESSAGES, TRANSCRIPTS) if kind in self._kinds),
            numbers=self.numbers,
            label=self.table.label,
            remarks=(*self._of_columns(), *self.remarks),
            mapped=frozenset(self._mapped),
            implicit_prompts=implicit_prompts,
        )

    def _of_columns(self) -> Iterator[str]:
        unread = [key for key in self.table.beside if key != TRAIT_NAME or CHOSEN not in self.roles]
        for key in (*unread, *sorted(f"{key} of messages" for key in self.reader.unread)):
            yield f"{key} is not a key that is read here; its value changes nothing"
        if self.further_columns:
            yield f"further columns, kept beside each row: {', '.join(self.further_columns)}"
        for key, name in self._moved:
            yield f"its column {key} is kept as {name}, since data.columns names another"
        if self._taken_as_strings:
            yield f"{self._taken_as_strings} strings read as transcripts, and are taken as they are, since data.format is {self.form}"

    def _of_another_kind(self, found: bool) -> str:
        if self.form == TRANSCRIPTS:
            expected = "data.format expects one, which begins with a blank line and Human:, or with Human: and has more turns"
            return f"is no transcript; {expected}; mend it, or set data.format to auto"
        kinds = "reads as a transcript, and the first" if found else "is no transcript, and the first"
        first = f"{kinds} of its kind {'does not' if found else 'is one'}"
        return f"{first}; all or none are expected; mend it, or set data.format, for both files, to take strings as they are"

    def _require_names_apart(self) -> None:
        """Raises SettingsError where data.columns reads two texts of a row from one column."""
        problems = []
        for role, name in self.columns.items():
            others = (other for other in (*self.roles, TRAIT_NAME) if other != role)
            taken = next((other for other in others if name == self.columns.get(other) or self._is_known_as(other, name)), None)
            if taken is not None:
                problems.append(
                    f"data.columns.{role}: the column {name} is read as the {taken} already; each text has one of its own; "
                    f"name another{'' if taken == TRAIT_NAME else f', or set data.columns.{taken} too'}"
                )

        if problems:
            raise SettingsError(problems)

    def _is_known_as(self, role: str, name: str) -> bool:
        """Whether this column is read as the role where data.columns does not say."""
        known = {role, *(style[(CHOSEN, REJECTED).index(role)] for style in SIDES if role in (CHOSEN, REJECTED))}
        return role not in self.columns and name in known

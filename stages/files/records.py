"""Prompts and pairs: read from a user's file, where all that is wrong is told at once, and from the rows that validate wrote.

The user's shapes: {"prompts": [...]}; {"trait_name": ..., "pairs": [{"positive": ..., "negative": ...}]}; lines with
`prompt`, or with `chosen`, `rejected` and perhaps `prompt`. The stage's own files have one line per row in the second
form. A text is kept as it is written, byte for byte; further columns of a row are kept beside it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stages.core.errors import DataError
from stages.files import outputs, rows
from stages.files.rows import Row, described, listed

PROMPT = "prompt"
CHOSEN = "chosen"
REJECTED = "rejected"
TRAIT_NAME = "trait_name"
SIDES = {rows.JSON: ("positive", "negative"), rows.JSONL: (CHOSEN, REJECTED)}
"""What the better and the worse side are called in each format."""

PROMPT_SHAPES = 'an object {"prompts": [texts]} or lines with prompt'
PAIR_SHAPES = 'an object {"trait_name": text, "pairs": [{"positive": text, "negative": text}]} or lines with chosen and rejected'

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt:
    """A prompt and the further columns of its row."""

    prompt: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """A better and a worse text, the prompt they answer where there is one, and the further columns of the row."""

    prompt: str | None
    chosen: str
    rejected: str
    trait_name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a file, in its order, each with the place it was read from."""

    path: Path
    format: str
    prompts: tuple[Prompt, ...]
    places: tuple[str, ...]
    unread: tuple[str, ...] = ()
    """Keys beside the rows that nothing reads."""


@dataclass(frozen=True)
class PairSet:
    """The pairs of a file, in its order, each with the place it was read from."""

    path: Path
    format: str
    pairs: tuple[Pair, ...]
    places: tuple[str, ...]
    unread: tuple[str, ...] = ()
    """Keys beside the rows that nothing reads."""

    @property
    def trait_name(self) -> str | None:
        """The trait that all pairs differ in; None where they name none, or not the same one."""
        names = {pair.trait_name for pair in self.pairs}
        return names.pop() if len(names) == 1 else None


def read_prompts(path: Path) -> PromptSet:
    """The prompts of a user's file; raises DataError with all that is wrong with it."""
    table = rows.read(path, "prompts", (PROMPT,), PROMPT_SHAPES)
    if not table.rows:
        raise DataError(f"{_top(path, table, 'prompts')}: prompt set contains no prompts; at least one is expected; add some")
    prompts = _built(table.rows, _seed_prompt if table.format == rows.JSON else _prompt)
    return PromptSet(path, table.format, prompts, tuple(row.label() for row in table.rows), tuple(table.beside))


def read_pairs(path: Path) -> PairSet:
    """The pairs of a user's file; raises DataError with all that is wrong with it."""
    table = rows.read(path, "pairs", (CHOSEN, REJECTED), PAIR_SHAPES)
    trait_name = table.beside.get(TRAIT_NAME)
    problems: list[str] = []
    if table.top is not None and TRAIT_NAME in table.beside:
        problems += _text_problems(table.top, TRAIT_NAME)
    if problems:
        trait_name = None
    if not table.rows:
        problems.append(
            f"{_top(path, table, 'pairs')}: pair set {trait_name or path} contains no pairs; at least one is expected; add some"
        )
    pairs = _built(table.rows, lambda row: _pair(row, SIDES[table.format], trait_name), problems)
    unread = tuple(key for key in table.beside if key != TRAIT_NAME)
    return PairSet(path, table.format, pairs, tuple(row.label() for row in table.rows), unread)


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """Writes prompts as lines that `load_prompts` reads back unchanged."""
    outputs.write_jsonl(path, ({PROMPT: row.prompt, **row.extra} for row in prompts))


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Writes pairs as lines that `load_pairs` reads back unchanged; an absent prompt or trait is an absent column."""
    outputs.write_jsonl(path, (_line(pair) for pair in pairs))


def load_prompts(path: Path, at_least: int = 0) -> list[Prompt]:
    """The prompts that validate wrote; raises DataError where the file is missing, has fewer, or is not as it was written."""
    return _loaded(path, _prompt, at_least)


def load_pairs(path: Path, at_least: int = 0) -> list[Pair]:
    """The pairs that validate wrote; raises DataError where the file is missing, has fewer, or is not as it was written."""
    return _loaded(path, lambda row: _pair(row, SIDES[rows.JSONL], None), at_least)


def _line(pair: Pair) -> dict[str, Any]:
    named = {PROMPT: pair.prompt, CHOSEN: pair.chosen, REJECTED: pair.rejected, TRAIT_NAME: pair.trait_name}
    return {**{name: text for name, text in named.items() if text is not None}, **pair.extra}


def _loaded(path: Path, build: Callable[[Row], T], at_least: int) -> list[T]:
    if not path.exists():
        raise DataError(f"{path}: validate's output is not there: run dvc repro validate")
    try:
        found = list(_built(rows.read_lines(path), build))
    except DataError as refused:
        first = refused.problems[0]
        raise DataError(f"{first}; this is validate's own output: run dvc repro validate") from None
    if len(found) < at_least:
        raise DataError(f"{path}: it has {len(found)} rows, and validate writes {at_least} or more: run dvc repro validate")
    return found


def _built(found: Sequence[Row], build: Callable[[Row], T], problems: Sequence[str] = ()) -> tuple[T, ...]:
    """Every row built; raises DataError with the given problems and those of all rows."""
    built, refused = [], list(problems)
    for row in found:
        try:
            built.append(build(row))
        except DataError as error:
            refused += error.problems
    if refused:
        raise DataError(refused)
    return tuple(built)


def _seed_prompt(row: Row) -> Prompt:
    _refuse(_text_problems(row))
    return Prompt(row.value)


def _prompt(row: Row) -> Prompt:
    _refuse(_object_problems(row, (PROMPT,)) or _text_problems(row, PROMPT))
    return Prompt(row.value[PROMPT], _further(row, PROMPT))


def _pair(row: Row, sides: tuple[str, str], trait_name: str | None) -> Pair:
    """A pair whose sides have the names given; the row's own trait name goes before the set's."""
    _refuse(_object_problems(row, sides))
    value = row.value
    set_name = trait_name or row.document.path
    if isinstance(value.get(TRAIT_NAME), str):
        set_name = value[TRAIT_NAME]
    empty = f"pair set {set_name} contains an empty positive or negative prompt; write a text or remove the pair"
    problems = [problem for side in sides for problem in _text_problems(row, side, empty=empty)]
    problems += [problem for name in (PROMPT, TRAIT_NAME) if name in value for problem in _text_problems(row, name)]
    problems += [
        f"{row.place(name)}: {row.name(name)} stands beside {' and '.join(sides)}; a side has one name; remove or rename it"
        for name in (CHOSEN, REJECTED)
        if name in value and name not in sides
    ]
    _refuse(problems)
    chosen, rejected = (value[side] for side in sides)
    further = _further(row, PROMPT, TRAIT_NAME, *sides)
    return Pair(value.get(PROMPT), chosen, rejected, value.get(TRAIT_NAME, trait_name), further)


def _further(row: Row, *known: str) -> dict[str, Any]:
    return {name: value for name, value in row.value.items() if name not in known}


def _object_problems(row: Row, columns: tuple[str, ...]) -> list[str]:
    """What keeps a row from being an object with the columns given."""
    if row.problems:
        return list(row.problems)
    expected = f"an object with {' and '.join(columns)} is expected"
    if not isinstance(row.value, dict):
        return [f"{row.place()}: {row.name()} is {described(row.value)}; {expected}; write it as one, or remove it"]
    return [
        f"{row.place()}: {row.name(column)} is missing, the row has {listed(row.value)}; {expected}; add it, or rename a key"
        for column in columns
        if column not in row.value
    ]


def _text_problems(row: Row, *name: str, empty: str = "a text is expected; put one there or remove the row") -> list[str]:
    """What keeps the row, or its field, from being a text that says something; at most one problem."""
    value = row.value[name[0]] if name else row.value
    where = f"{row.place(*name)}: {row.name(*name)}" if not isinstance(value, str) or not value.strip() else ""
    if not isinstance(value, str):
        return [f"{where} is {described(value)}; a text is expected; put one there"]
    if not value:
        return [f"{where} is empty; {empty}"]
    return [f"{where} holds nothing but whitespace; {empty}"] if where else []


def _refuse(problems: list[str]) -> None:
    if problems:
        raise DataError(problems)


def _top(path: Path, table: rows.Table, key: str) -> str:
    return table.top.place(key) if table.top is not None else str(path)

"""The prompts and the pairs of a user's file: what each row holds, or every problem of the file at once.

The shapes, in any format that can have them: {"prompts": [texts]}; rows with `prompt`; {"trait_name": ..., "pairs":
[{"positive", "negative"}]}; rows with `chosen`, `rejected` and perhaps `prompt`. A text is a string or a list of messages.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.files.intake import shapes
from stages.files.intake.reading import Reading
from stages.files.intake.row_set import PairSet, PromptSet
from stages.files.intake.rows import JSON
from stages.files.intake.shapes import ShapeError
from stages.files.records import CHOSEN, NOTHING, PROMPT, REJECTED, TRAIT_NAME, Pair, Prompt

PROMPT_SHAPES = 'an object {"prompts": [texts]} or rows with prompt'
PAIR_SHAPES = 'an object {"trait_name": text, "pairs": [{"positive": text, "negative": text}]} or rows with chosen and rejected'


def read_prompts(path: Path, form: str, columns: Mapping[str, str | None]) -> PromptSet:
    """The prompts of a user's file; raises DataError with all that is wrong with it.

    `form` and `columns` are data.format and data.columns.
    """
    reading = Reading(path, form, "prompts", (PROMPT,), columns, PROMPT_SHAPES)
    rows: list[Prompt] = []
    for row in reading.rows():
        field: tuple[str, ...] = ()
        further = NOTHING
        # In a list, and on a line of its own, a text stands without a row around it.
        is_text = isinstance(row.value, str) or (reading.table.format == JSON and not isinstance(row.value, dict))
        if not is_text:
            names = reading.names(row)
            if reading.lacks(row, (names[PROMPT],)):
                continue
            field, further = (names[PROMPT],), reading.further(row, names)
        text = reading.text(row, PROMPT, *field)
        if text is not None:
            try:
                rows.append(Prompt(shapes.prompt(text), further))
            except ShapeError as error:
                reading.refuse(row, *field, found=error.phrase)
    reading.finish("prompt set contains no prompts")
    return reading.row_set(rows)


def read_pairs(path: Path, form: str, columns: Mapping[str, str | None]) -> PairSet:
    """The pairs of a user's file; raises DataError with all that is wrong with it.

    `form` and `columns` are data.format and data.columns.
    """
    reading = Reading(path, form, "pairs", (CHOSEN, REJECTED, PROMPT), columns, PAIR_SHAPES)
    top, beside = reading.table.top, reading.table.beside
    trait_name = reading.trait_name(top, beside[TRAIT_NAME]) if top is not None and TRAIT_NAME in beside else None
    rows: list[Pair] = []
    implicit = 0
    for row in reading.rows():
        names = reading.names(row)
        if reading.lacks(row, (names[CHOSEN], names[REJECTED])):
            continue
        value = row.value
        own = reading.trait_name(row, value[TRAIT_NAME]) if TRAIT_NAME in value else trait_name
        empty = f"pair set {own or path} contains an empty positive or negative prompt; write a text or remove the pair"
        given = reading.text(row, PROMPT, names[PROMPT]) if names[PROMPT] in value else None
        follows = isinstance(given, tuple) and isinstance(value[names[PROMPT]], str)  # of a transcript, not of a list
        chosen, rejected = (reading.text(row, side, names[side], empty=empty, follows=follows) for side in (CHOSEN, REJECTED))
        further = reading.further(row, {**names, TRAIT_NAME: TRAIT_NAME})
        if chosen is None or rejected is None or (given is None and names[PROMPT] in value):
            continue
        try:
            prompt, chosen, rejected, is_implicit = shapes.sides(given, chosen, rejected)
        except ShapeError as error:
            reading.refuse(row, names[error.column], found=error.phrase)
            continue
        implicit += is_implicit
        rows.append(Pair(prompt, chosen, rejected, own, further))
    reading.finish(f"pair set {trait_name or path} contains no pairs")
    if reading.further_columns and not any(pair.prompt is not None for pair in rows):
        named = ", ".join(reading.further_columns)
        reading.remarks.append(f"no pair has a prompt; where a further column ({named}) is it, data.columns.prompt names it")
    return reading.row_set(rows, implicit)


def trait_of(pairs: Sequence[Pair]) -> str | None:
    """The trait that all pairs differ in; None where they name none, or not the same one."""
    names = {pair.trait_name for pair in pairs}
    return names.pop() if len(names) == 1 else None

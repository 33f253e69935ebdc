"""Prompts and pairs as the stages have them, and the files in which validate hands them on.

A text is a string, or a conversation: a tuple of messages. A prompt that is a conversation ends with the user's turn. A side
of a pair is a string, which is one answer, or a conversation of more turns that ends with the assistant's. The files have a
row a line, with `prompt`, or with `chosen`, `rejected` and perhaps `prompt` and `trait_name`; a conversation is a list of
{"role", "content"} there. Strings are kept as they are written, byte for byte; further columns of a row stand beside them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from stages.core.errors import DataError
from stages.files import outputs

PROMPT = "prompt"
CHOSEN = "chosen"
REJECTED = "rejected"
TRAIT_NAME = "trait_name"

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
ROLES = (SYSTEM, USER, ASSISTANT)

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""The further columns of a row that has none; one object for all of them."""

T = TypeVar("T")


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str


Conversation = tuple[Message, ...]
Text = str | Conversation


class Prompt(NamedTuple):
    """A prompt and the further columns of its row."""

    prompt: Text
    extra: Mapping[str, Any] = NOTHING


class Pair(NamedTuple):
    """A better and a worse text, the prompt they answer where there is one, and the further columns of the row."""

    prompt: Text | None
    chosen: Text
    rejected: Text
    trait_name: str | None = None
    extra: Mapping[str, Any] = NOTHING


def as_json(text: Text) -> Any:
    """The text as a row has it: a string, or a list of {"role", "content"}."""
    return text if isinstance(text, str) else [message._asdict() for message in text]


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """Writes prompts as lines that `load_prompts` reads back unchanged."""
    outputs.write_jsonl(path, (_apart({PROMPT: as_json(row.prompt)}, row.extra) for row in prompts))


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Writes pairs as lines that `load_pairs` reads back unchanged; an absent prompt or trait is an absent column."""
    outputs.write_jsonl(path, map(_line, pairs))


def load_prompts(path: Path, at_least: int = 0) -> list[Prompt]:
    """The prompts that validate wrote; raises DataError where the file is missing, has fewer, or is not as it was written."""
    return _loaded(path, _prompt, at_least)


def load_pairs(path: Path, at_least: int = 0) -> list[Pair]:
    """The pairs that validate wrote; raises DataError where the file is missing, has fewer, or is not as it was written."""
    return _loaded(path, _pair, at_least)


def _line(pair: Pair) -> dict[str, Any]:
    row = {} if pair.prompt is None else {PROMPT: as_json(pair.prompt)}
    row |= {CHOSEN: as_json(pair.chosen), REJECTED: as_json(pair.rejected)}
    row |= {} if pair.trait_name is None else {TRAIT_NAME: pair.trait_name}
    return _apart(row, pair.extra)


def _apart(row: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    assert row.keys().isdisjoint(extra), "a further column has the name of a text"
    return {**row, **extra}


def _loaded(path: Path, build: Callable[[dict[str, Any]], T], at_least: int) -> list[T]:
    again = "run dvc repro validate"
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: validate's output is not there: {again}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): {again}") from None
    found: list[T] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise TypeError
            found.append(build(row))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise DataError(f"{path}:{number}: not a row as validate writes it; {again}") from None
    if len(found) < at_least:
        raise DataError(f"{path}: it has {len(found)} rows, and validate writes {at_least} or more: {again}")
    return found


def _prompt(row: dict[str, Any]) -> Prompt:
    return Prompt(_text(row.pop(PROMPT)), row or NOTHING)


def _pair(row: dict[str, Any]) -> Pair:
    prompt = _text(row.pop(PROMPT)) if PROMPT in row else None
    chosen, rejected, trait_name = _text(row.pop(CHOSEN)), _text(row.pop(REJECTED)), row.pop(TRAIT_NAME, None)
    if not isinstance(trait_name, str | None):
        raise TypeError
    return Pair(prompt, chosen, rejected, trait_name, row or NOTHING)


def _text(value: Any) -> Text:
    if isinstance(value, str):
        return value
    messages = tuple(Message(**message) for message in value)
    if not messages or not all(isinstance(part, str) for message in messages for part in message):
        raise TypeError
    return messages

"""Which rows are held out: a hash of the prompt decides, so no prompt stands on both sides and no row moves another.

The prompt is hashed after Unicode normalisation (NFC), with one kind of line end and without whitespace around it, so that
two spellings of one prompt fall on one side; the text itself is kept as it was. The prompts file and the pairs file are split
by the same hash: what is held out of the one is not trained on from the other, where the pairs have prompts.
"""

import hashlib
import json
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stages.files.records import SYSTEM, Pair, Prompt, Text

HASH_BITS = 64


class Split(NamedTuple):
    """The indexes of the rows on both sides, each in the order of the file."""

    train: "array[int]"
    heldout: "array[int]"


def normalised(text: str) -> str:
    """The text in NFC, its lines ended by line feeds, without whitespace around it: what two spellings of one text share."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n") if "\r" in text else text).strip()


def flat(text: Text, whole: bool = False) -> str:
    """A text as one string, normalised; a conversation of one turn is that turn's content. A system turn counts in the `whole` alone.

    So a prompt is the same one as a string, as a message, and under another system turn.
    """
    if isinstance(text, str):
        return normalised(text)
    turns = [(message.role, normalised(message.content)) for message in text if whole or message.role != SYSTEM]
    return turns[0][1] if len(turns) == 1 else json.dumps(turns)


def identity(row: Prompt | Pair) -> tuple[str, ...]:
    """What a row is held out by: its prompt, or its two texts in sorted order where a pair has none."""
    if row.prompt is not None:
        return (flat(row.prompt),)
    assert isinstance(row, Pair)
    return tuple(sorted((flat(row.chosen), flat(row.rejected))))


def is_heldout(row: Prompt | Pair, fraction: float, seed: int) -> bool:
    """Whether the hash of (seed, identity), as a number in [0, 1), lies below the fraction; a larger fraction adds rows only."""
    digest = hashlib.sha256(json.dumps([seed, *identity(row)]).encode()).digest()
    return int.from_bytes(digest[: HASH_BITS // 8]) < fraction * 2.0**HASH_BITS


def split(rows: Sequence[Prompt | Pair], indexes: Iterable[int], fraction: float, seed: int) -> Split:
    """Which of the rows at these indexes are trained on, and which are held out."""
    train, heldout = divided = Split(array("q"), array("q"))
    for index in indexes:
        (heldout if is_heldout(rows[index], fraction, seed) else train).append(index)
    return divided

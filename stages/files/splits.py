"""Which rows are held out: a hash of the prompt decides, so no prompt stands on both sides and no row moves another.

The prompt is hashed after Unicode normalisation (NFC) and without whitespace around it, so that two spellings of one prompt
fall on one side; the text itself is kept as it was. The prompts file and the pairs file are split by the same hash: what is
held out of the one is not trained on from the other, where the pairs have prompts.
"""

import hashlib
import json
import unicodedata
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from stages.files.records import Pair, Prompt

Row = TypeVar("Row", Prompt, Pair)

HASH_BITS = 64


class Split(NamedTuple, Generic[Row]):
    """The rows of both sides, each in the order of the file."""

    train: list[Row]
    heldout: list[Row]


def normalised(text: str) -> str:
    """The text in NFC, without whitespace around it: what two spellings of one text share."""
    return unicodedata.normalize("NFC", text).strip()


def identity(row: Prompt | Pair) -> tuple[str, ...]:
    """What a row is held out by: its prompt, or its two texts in sorted order where a pair has none."""
    if row.prompt is not None:
        return (normalised(row.prompt),)
    return tuple(sorted((normalised(row.chosen), normalised(row.rejected))))


def is_heldout(row: Prompt | Pair, fraction: float, seed: int) -> bool:
    """Whether the hash of (seed, identity), as a number in [0, 1), lies below the fraction; a larger fraction adds rows only."""
    digest = hashlib.sha256(json.dumps([seed, *identity(row)]).encode()).digest()
    return int.from_bytes(digest[: HASH_BITS // 8]) < fraction * 2.0**HASH_BITS


def split(rows: Sequence[Row], fraction: float, seed: int) -> Split[Row]:
    """Training and held-out rows."""
    heldout = [is_heldout(row, fraction, seed) for row in rows]
    return Split(
        [row for row, held in zip(rows, heldout, strict=True) if not held],
        [row for row, held in zip(rows, heldout, strict=True) if held],
    )

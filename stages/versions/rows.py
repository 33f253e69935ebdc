"""Rows of the data that two versions do not share, as validate kept them: added, removed, and moved between the splits.

Rows are counted: of a row that stands twice on one side and once on the other, one was added or removed. Two rows are the
same where their JSON is, whatever the order of their columns.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.core import layout
from stages.versions import json_lines
from stages.versions.snapshot import Snapshot

TRAIN, HELDOUT = "train", "heldout"
FILES = {
    "prompts": {TRAIN: layout.TRAIN_PROMPTS, HELDOUT: layout.HELDOUT_PROMPTS},
    "pairs": {TRAIN: layout.TRAIN_PAIRS, HELDOUT: layout.HELDOUT_PAIRS},
}

Split = dict[str, Counter[str]]
"""The canonical JSON of the rows, counted, by split; in the order of the files."""


@dataclass(frozen=True)
class Row:
    """A row and the split that it is in; of one that moved, the split that it is in now."""

    split: str
    row: Any


@dataclass(frozen=True)
class RowChange:
    """What became of the rows of one kind, prompts or pairs."""

    kind: str
    added: list[Row]
    removed: list[Row]
    moved: list[Row]


def read(snapshot: Snapshot, kind: str) -> Split:
    """The rows of a version; raises MissingError or DataError."""
    folder = snapshot.output(layout.VALIDATE)
    return {split: _counted(folder / path.relative_to(layout.VALIDATE)) for split, path in FILES[kind].items()}


def compare(kind: str, a: Split, b: Split) -> RowChange:
    """Added and moved rows in B's order, removed ones in A's."""
    changed: dict[str, list[Row]] = {"added": [], "removed": [], "moved": []}
    every = dict.fromkeys(text for side in (b, a) for split in (TRAIN, HELDOUT) for text in side[split])
    for text in every:
        more = {split: b[split][text] - a[split][text] for split in (TRAIN, HELDOUT)}
        for split, other in ((TRAIN, HELDOUT), (HELDOUT, TRAIN)):
            moved = max(0, min(more[split], -more[other]))
            changed["moved"] += [Row(split, json.loads(text))] * moved
            more[split] -= moved
            more[other] += moved
        for split, count in more.items():
            changed["added" if count > 0 else "removed"] += [Row(split, json.loads(text))] * abs(count)
    return RowChange(kind, **changed)


def _counted(path: Path) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in json_lines.read(path, "validate"))

"""Rows added, removed and moved, counted by hand."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from stages.core.errors import DataError
from stages.versions import rows
from stages.versions.rows import HELDOUT, TRAIN, Row, Split


def split(train: Sequence[str] = (), heldout: Sequence[str] = ()) -> Split:
    return {TRAIN: Counter(f'"{row}"' for row in train), HELDOUT: Counter(f'"{row}"' for row in heldout)}


def changed(a: Split, b: Split) -> dict[str, list[tuple[str, Any]]]:
    change = rows.compare("prompts", a, b)
    return {name: [(row.split, row.row) for row in getattr(change, name)] for name in ("added", "removed", "moved")}


def test_the_same_rows_in_another_order_are_no_change():
    assert changed(split("abc", "d"), split("cab", "d")) == {"added": [], "removed": [], "moved": []}


def test_rows_are_added_in_the_order_of_b_and_removed_in_that_of_a():
    assert changed(split("zay", "k"), split("car", "m")) == {
        "added": [(TRAIN, "c"), (TRAIN, "r"), (HELDOUT, "m")],
        "removed": [(TRAIN, "z"), (TRAIN, "y"), (HELDOUT, "k")],
        "moved": [],
    }


def test_a_row_that_changed_sides_moved_and_is_neither_added_nor_removed():
    assert changed(split("ab", "c"), split("bc", "a")) == {"added": [], "removed": [], "moved": [(TRAIN, "c"), (HELDOUT, "a")]}


@pytest.mark.parametrize(
    ("a", "b", "added", "removed", "moved"),
    [
        (split("aa"), split("a"), 0, 1, 0),
        (split("a"), split("aaa"), 2, 0, 0),
        (split("aa"), split("a", "aa"), 1, 0, 1),
        (split("aaa", "a"), split("a", "aa"), 0, 1, 1),
        (split("a", "a"), split("", "aa"), 0, 0, 1),
    ],
)
def test_equal_rows_are_counted(a: Split, b: Split, added: int, removed: int, moved: int):
    assert [len(found) for found in changed(a, b).values()] == [added, removed, moved]


def test_columns_in_another_order_make_no_other_row(tmp_path):
    (tmp_path / "a").write_text('{"prompt": "x", "id": 1}\n')
    (tmp_path / "b").write_text('{"id": 1, "prompt": "x"}\n')
    assert rows._counted(tmp_path / "a") == rows._counted(tmp_path / "b")


@pytest.mark.parametrize("line", ["{", '{"prompt": ', "[" * 100_000, "\udcff", '{"prompt": "\\ud800"}', "NaN"])
def test_a_line_that_is_no_row_is_refused_with_its_number(tmp_path, line: str):
    (tmp_path / "a").write_bytes(b'{"prompt": "x"}\n' + line.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=r"a:2: not a row as validate writes it; dvc repro validate writes it anew"):
        rows._counted(tmp_path / "a")


def test_a_row_comes_back_as_it_was_written():
    change = rows.compare("pairs", {TRAIN: Counter(), HELDOUT: Counter()}, {TRAIN: Counter({'{"chosen": "é"}': 1}), HELDOUT: Counter()})
    assert change.added == [Row(TRAIN, {"chosen": "é"})]

"""What reports, tables and rows look like on disk."""

import csv
import json
import math
import os
from pathlib import Path

import pytest

from stages.files import outputs


def test_an_object_is_written_pretty_in_its_own_order_in_utf8_with_a_last_line_feed(tmp_path: Path):
    outputs.write_json(tmp_path / "a" / "b.json", {"z": 1, "a": [0.1, None, True], "word": "größer"})
    assert (tmp_path / "a" / "b.json").read_text("utf-8") == (
        '{\n  "z": 1,\n  "a": [\n    0.1,\n    null,\n    true\n  ],\n  "word": "größer"\n}\n'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_written_nowhere_and_what_was_there_stays(tmp_path: Path, value: float):
    for name in ("a.json", "a.jsonl", "a.csv"):
        (tmp_path / name).write_text("before")
    with pytest.raises(ValueError, match="Out of range float"):
        outputs.write_json(tmp_path / "a.json", {"a": {"b": [value]}})
    with pytest.raises(ValueError, match="Out of range float"):
        outputs.write_jsonl(tmp_path / "a.jsonl", [{"a": 1.0}, {"a": value}])
    with pytest.raises(AssertionError):
        outputs.write_csv(tmp_path / "a.csv", ("a",), [{"a": 1.0}, {"a": value}])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(("a.json", "a.jsonl", "a.csv"), "before")


def test_rows_are_an_object_per_line_whatever_they_hold(tmp_path: Path):
    rows = [{"text": "two\nlines\u2028and a separator"}, {"text": "größer"}]
    outputs.write_jsonl(tmp_path / "a.jsonl", rows)
    content = (tmp_path / "a.jsonl").read_text("utf-8")
    assert [json.loads(line) for line in content.removesuffix("\n").split("\n")] == rows
    assert "größer" in content


def test_no_rows_are_an_empty_file(tmp_path: Path):
    outputs.write_jsonl(tmp_path / "a.jsonl", [])
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def test_a_table_has_its_columns_in_order_and_numbers_that_read_back_the_same(tmp_path: Path):
    rows = [{"loss": 0.1 + 0.2, "step": 1}, {"step": 2, "loss": 1e-300}]
    outputs.write_csv(tmp_path / "a.csv", ("step", "loss"), rows)
    assert (tmp_path / "a.csv").read_bytes() == b"step,loss\n1,0.30000000000000004\n2,1e-300\n"
    with (tmp_path / "a.csv").open() as stream:
        assert [float(row["loss"]) for row in csv.DictReader(stream)] == [row["loss"] for row in rows]


def test_a_row_with_a_column_too_many_is_our_own_mistake(tmp_path: Path):
    with pytest.raises(ValueError, match="fields not in fieldnames"):
        outputs.write_csv(tmp_path / "a.csv", ("step",), [{"step": 1, "loss": 2.0}])
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv"])
def test_the_same_values_give_the_same_bytes(tmp_path: Path, name: str):
    write = {
        "a.json": lambda path: outputs.write_json(path, {"a": 0.1, "b": [1, "x"]}),
        "a.jsonl": lambda path: outputs.write_jsonl(path, [{"a": 0.1}, {"a": "x"}]),
        "a.csv": lambda path: outputs.write_csv(path, ("a",), [{"a": 0.1}, {"a": 1}]),
    }[name]
    write(tmp_path / "one" / name)
    write(tmp_path / "other" / name)
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_place_that_nothing_can_be_written_to_is_named_before_anything_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    outputs.make_ready(tmp_path / "a" / "b.json", tmp_path / "c" / "d" / "e.csv")
    assert (tmp_path / "a").is_dir() and (tmp_path / "c" / "d").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError) as caught:
        outputs.make_ready(tmp_path / "a" / "b.json", tmp_path / "file" / "b.json")
    assert caught.value.filename == str(tmp_path / "file")
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path / "a")  # as for one who is not root
    with pytest.raises(PermissionError) as denied:
        outputs.make_ready(tmp_path / "a" / "b.json")
    assert denied.value.filename == str(tmp_path / "a")

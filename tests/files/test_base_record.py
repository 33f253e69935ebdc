"""base.json: written and read again, or refused with what to run."""

import json
from pathlib import Path

import pytest

from stages.core.errors import BaseError
from stages.files import base_record
from tests import tiny


def test_a_record_comes_back_as_it_was_written(tmp_path: Path):
    record = tiny.base(tiny.tokenizer())
    path = tmp_path / "base.json"
    path.write_text(json.dumps(record.as_json()))
    assert base_record.read_base(path) == record


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "no base is recorded; run `dvc repro base`"),
        (
            b"{",
            "not readable as JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); run `dvc repro -f base`",
        ),
        (b"\xff", "not readable as JSON ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte); run `dvc repro -f base`"),
        (b"[]", "not a base record of this version; run `dvc repro -f base`"),
        (b'{"model": "toy"}', "not a base record of this version; run `dvc repro -f base`"),
    ],
)
def test_a_record_that_is_missing_or_none_is_refused_with_what_to_run(tmp_path: Path, content: bytes | None, line: str):
    path = tmp_path / "base.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BaseError) as caught:
        base_record.read_base(path)
    assert caught.value.lines() == [f"{path}: {line}"]


def test_a_record_of_another_version_is_refused(tmp_path: Path):
    path = tmp_path / "base.json"
    path.write_text(json.dumps({**tiny.base(tiny.tokenizer()).as_json(), "further": 1}))
    with pytest.raises(BaseError, match="not a base record of this version"):
        base_record.read_base(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("positions", "64"), ("folder", 3), ("layers", True), ("end_tokens", []), ("end_tokens", ["2"]), ("fingerprint", None)],
)
def test_a_record_with_a_value_of_another_type_is_refused_by_name(tmp_path: Path, key: str, value: object):
    path = tmp_path / "base.json"
    path.write_text(json.dumps({**tiny.base(tiny.tokenizer()).as_json(), key: value}))
    with pytest.raises(BaseError) as caught:
        base_record.read_base(path)
    assert caught.value.lines() == [f"{path}: {key} is not what the base stage writes; run `dvc repro -f base`"]


@pytest.mark.parametrize("key", ["fingerprint", "weights_sha256", "template_sha256"])
def test_a_fingerprint_that_is_not_that_of_the_digests_is_refused(tmp_path: Path, key: str):
    path = tmp_path / "base.json"
    path.write_text(json.dumps({**tiny.base(tiny.tokenizer()).as_json(), key: "0" * 64}))
    with pytest.raises(BaseError, match="its fingerprint is not that of its digests"):
        base_record.read_base(path)


def test_deep_nesting_is_refused(tmp_path: Path):
    path = tmp_path / "base.json"
    path.write_text("[" * 100_000)
    with pytest.raises(BaseError, match="not readable as JSON"):
        base_record.read_base(path)

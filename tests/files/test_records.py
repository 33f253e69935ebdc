"""The rows that validate hands on: written, read back unchanged, and refused where they are not as it writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.core.errors import DataError
from stages.files import records
from stages.files.records import Message, Pair, Prompt

STRINGS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
MESSAGES = st.lists(st.builds(Message, st.sampled_from(records.ROLES), STRINGS), min_size=1, max_size=3).map(tuple)
TEXTS = STRINGS | MESSAGES
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=6,
)
NAMES = ("prompt", "chosen", "rejected", "trait_name")
EXTRAS = st.dictionaries(STRINGS.filter(lambda name: name not in NAMES), VALUES, max_size=3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.builds(Prompt, TEXTS, EXTRAS)))
def test_prompts_that_are_written_are_read_back_unchanged(tmp_path_factory: pytest.TempPathFactory, prompts: list[Prompt]):
    path = tmp_path_factory.mktemp("rows") / "prompts.train.jsonl"
    records.write_prompts(path, prompts)
    assert records.load_prompts(path) == prompts


@settings(max_examples=30, deadline=None)
@given(st.lists(st.builds(Pair, st.none() | TEXTS, TEXTS, TEXTS, st.none() | STRINGS, EXTRAS)))
def test_pairs_that_are_written_are_read_back_unchanged(tmp_path_factory: pytest.TempPathFactory, pairs: list[Pair]):
    path = tmp_path_factory.mktemp("rows") / "pairs.train.jsonl"
    records.write_pairs(path, pairs)
    assert records.load_pairs(path) == pairs


def test_a_written_pair_carries_its_trait_and_leaves_out_what_it_has_not(tmp_path: Path):
    conversation = (Message("user", "p"), Message("assistant", "q"), Message("user", "r"))
    records.write_pairs(tmp_path / "rows", [Pair(None, "a", "b", "calm"), Pair(conversation, "c", "d", None, {"id": 1})])
    assert [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()] == [
        {"chosen": "a", "rejected": "b", "trait_name": "calm"},
        {
            "prompt": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "q"}, {"role": "user", "content": "r"}],
            "chosen": "c",
            "rejected": "d",
            "id": 1,
        },
    ]


BROKEN = [
    b"{",
    b"3",
    b"null",
    b'"a"',
    b"[]",
    b'{"prompt": "a"}',
    b'{"chosen": "a", "rejected": 3}',
    b'{"chosen": "a", "rejected": []}',
    b'{"chosen": "a", "rejected": [{"role": "user"}]}',
    b'{"chosen": "a", "rejected": [{"role": "user", "content": null}]}',
    b'{"chosen": "a", "rejected": "b", "trait_name": 3}',
    b"\xc0",
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", BROKEN, ids=[str(content[:30]) for content in BROKEN])
def test_a_broken_output_of_validate_says_where_and_how_to_make_it_again(tmp_path: Path, content: bytes):
    path = tmp_path / "rows"
    path.write_bytes(b'{"chosen": "a", "rejected": "b"}\n' + content)
    with pytest.raises(DataError) as caught:
        records.load_pairs(path)
    assert caught.value.lines() == [f"{path}:2: not a row as validate writes it; run dvc repro validate"]


@pytest.mark.parametrize("load", [records.load_prompts, records.load_pairs])
def test_a_missing_or_short_output_of_validate_says_how_to_make_it_again(tmp_path: Path, load: Any):
    path = tmp_path / "rows"
    with pytest.raises(DataError, match=rf"^{path}: validate's output is not there: run dvc repro validate$"):
        load(path)
    path.mkdir()
    with pytest.raises(DataError, match=rf"^{path}: cannot be read \(Is a directory\): run dvc repro validate$"):
        load(path)
    path.rmdir()
    path.write_bytes(b"")
    assert load(path) == []
    with pytest.raises(DataError, match=rf"^{path}: it has 0 rows, and validate writes 1 or more: run dvc repro validate$"):
        load(path, at_least=1)

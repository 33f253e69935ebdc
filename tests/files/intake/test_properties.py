"""Over files of every kind: the same rows load however they are laid out; what does not is refused by line, never by a traceback."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.core.errors import SHOWN, DataError
from stages.files.intake.rows import FORMATS
from stages.files.intake.texts import CONTROL, VISIBLE
from stages.files.records import Message, Pair, Prompt, as_json
from stages.files.transcript import is_transcript
from tests.files.intake.files import BOM, read_pairs, read_prompts

CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\r\t\u0085")
STRINGS = st.text(CHARACTERS, min_size=1, max_size=20).filter(
    lambda text: VISIBLE.search(text) is not None and CONTROL.search(text) is None and not is_transcript(text)
)
USER, ASSISTANT = (STRINGS.map(lambda text, role=role: Message(role, text)) for role in ("user", "assistant"))
CONVERSATIONS = st.lists(st.tuples(USER, ASSISTANT), max_size=2).flatmap(
    lambda before: USER.map(lambda last: (*(message for turn in before for message in turn), last))
)
ANSWERS = st.sampled_from(["id", "answer"])
EXTRAS = st.dictionaries(ANSWERS, STRINGS, max_size=2)
PAIRS = st.builds(Pair, STRINGS, STRINGS, STRINGS, st.none(), EXTRAS) | st.builds(Pair, CONVERSATIONS, STRINGS, STRINGS, st.none(), EXTRAS)
DIFFERING = st.tuples(CONVERSATIONS, STRINGS, STRINGS).map(lambda row: (*row[:2], row[2] if row[1] != row[2] else f"{row[2]}x"))
LINE_ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"])


def row_of(pair: Pair) -> dict[str, Any]:
    return {"prompt": as_json(pair.prompt or ""), "chosen": as_json(pair.chosen), "rejected": as_json(pair.rejected), **pair.extra}


def whole(text: Any) -> list[Message]:
    return [Message("user", text)] if isinstance(text, str) else list(text)


@st.composite
def laid_out(draw: st.DrawFn, rows: list[dict[str, Any]]) -> bytes:
    """The rows as JSONL, as a JSON list or as an object, with what layout leaves open drawn."""
    ascii_only, indent = draw(st.booleans()), draw(st.sampled_from([None, 0, 2]))
    match draw(st.sampled_from(["lines", "list", "object"])):
        case "lines":
            end = draw(LINE_ENDS)
            text = end.join(json.dumps(row, ensure_ascii=ascii_only) for row in rows) + draw(st.sampled_from(["", end]))
        case "list":
            text = json.dumps(rows, ensure_ascii=ascii_only, indent=indent)
        case _:
            text = json.dumps({"note": 1, "pairs": rows}, ensure_ascii=ascii_only, indent=indent)
    return draw(st.sampled_from([b"", BOM])) + text.encode()


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(PAIRS, min_size=1, max_size=4))
def test_the_same_rows_load_however_json_lays_them_out(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, pairs: list[Pair]):
    path = tmp_path_factory.mktemp("rows") / "rows"
    path.write_bytes(data.draw(laid_out([row_of(pair) for pair in pairs])))
    assert read_pairs(path).rows == pairs


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.builds(Pair, STRINGS, STRINGS, STRINGS, st.none(), st.just({})), min_size=1, max_size=4),
    st.sampled_from(",;\t"),
    st.booleans(),
)
def test_the_same_rows_load_from_csv_and_parquet(tmp_path_factory: pytest.TempPathFactory, pairs: list[Pair], between: str, quoted: bool):
    folder = tmp_path_factory.mktemp("rows")
    rows = [row_of(pair) for pair in pairs]
    text = io.StringIO(newline="")
    # A carriage return or line feed that is not quoted would end the record, and the module quotes what needs it.
    writer = csv.DictWriter(text, list(rows[0]), delimiter=between, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
    writer.writeheader()
    writer.writerows(rows)
    (folder / "a").write_bytes(text.getvalue().encode())
    assert read_pairs(folder / "a").rows == pairs
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "b")
    assert read_pairs(folder / "b").rows == pairs


@settings(max_examples=100, deadline=None)
@given(st.lists(DIFFERING, min_size=1, max_size=4))
def test_a_pair_is_the_same_with_its_prompt_apart_and_within_its_sides(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]):
    path = tmp_path_factory.mktemp("rows") / "rows"
    sides = [[[*whole(prompt), Message("assistant", side)] for side in (chosen, rejected)] for prompt, chosen, rejected in rows]
    found = []
    for apart in (True, False):
        lines = [
            {"chosen": as_json(tuple(one)), "rejected": as_json(tuple(other)), **({"prompt": as_json(prompt)} if apart else {})}
            for (prompt, *_), (one, other) in zip(rows, sides, strict=True)
        ]
        path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
        found.append(read_pairs(path).rows)
    assert found[0] == found[1] == [Pair(*row) for row in rows]


VALID = [
    b'{"prompts": ["one", "two"], "note": {"x": [1, 2.5, null]}}',
    b'{"prompt": "one", "id": 1}\n{"prompt": [{"role": "user", "content": "two"}]}\n',
    b'[{"prompt": "one"},\n {"prompt": "tw\xc3\xb6"}]',
    b'prompt,answer\n"one, ""two""",3\nthree,"4\n5"\n',
    b'{"chosen": "a", "rejected": "b"}\n{"chosen": "c", "rejected": "d", "prompt": "e"}\n',
    b'{"trait_name": "t", "pairs": [{"positive": "a", "negative": "b"}]}',
    b'{"chosen": "\\n\\nHuman: a\\n\\nAssistant: b", "rejected": "\\n\\nHuman: a\\n\\nAssistant: c"}\n',
]
BYTES = st.sampled_from([*(bytes([byte]) for byte in b',}]"\\\xff\0\n\r'), b"", b"NaN", b"null", BOM, b"1e999", b"\\ud800"])


FORMS = st.sampled_from(["auto", "auto", "transcripts", *FORMATS])


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sound file with up to three places cut out, put in, or overwritten."""
    content = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 4)))
        content = content[:start] + draw(BYTES | st.binary(max_size=3)) + content[end:]
    return content


@settings(max_examples=600, deadline=None)
@given(
    mutated() | st.binary(max_size=60),
    st.sampled_from([read_prompts, read_pairs]),
    FORMS,
)
def test_any_file_loads_or_is_refused_by_line(tmp_path_factory: pytest.TempPathFactory, content: bytes, read: Any, form: str):
    path = tmp_path_factory.mktemp("rows") / "rows"
    path.write_bytes(content)
    try:
        found = read(path, form)
    except DataError as refused:
        for line in refused.lines()[:SHOWN]:
            assert re.match(rf"{path}(:\d+:\d+| row \d+)?: ", line), line
            assert "\n" not in line
    else:
        assert found.rows
        for row in found.rows:
            texts = [row.prompt] if isinstance(row, Prompt) else [row.chosen, row.rejected, *([] if row.prompt is None else [row.prompt])]
            assert all(isinstance(text, str | tuple) and text for text in texts)
        assert len({found.place(index) for index in range(len(found.rows))}) == len(found.rows)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2000), st.binary(min_size=1, max_size=8))
def test_any_damage_to_a_parquet_file_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, start: int, damage: bytes):
    path = tmp_path_factory.mktemp("rows") / "rows"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["one", "two"] * 50, "id": list(range(100))}), path)
    content = bytearray(path.read_bytes())
    content[start : start + len(damage)] = damage
    path.write_bytes(content)
    try:
        read_prompts(path)
    except DataError as refused:
        assert all(line.startswith(str(path)) for line in refused.problems), refused.problems


def test_a_path_with_a_strange_name_is_refused_like_any_other(tmp_path: Path):
    path = tmp_path / "a\nb"
    path.write_text("{")
    with pytest.raises(DataError) as caught:
        read_prompts(path)
    assert all("\n" not in line for line in caught.value.lines())

"""Reading prompts and pairs: every shape, every refusal with its place, and the round trip of the stage's own rows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.core.errors import DataError
from stages.files.intake.sets import trait_of
from stages.files.records import Pair, Prompt
from tests.files.intake.files import BOM, ROOT, SHARED, needs_shared, places, read_pairs, read_prompts, refused, write

PROMPTS_JSON = '{"prompts": ["one", " two "]}'
PROMPTS_JSONL = '{"prompt": "one"}\n{"prompt": " two "}\n'
PAIRS_JSON = '{"trait_name": "calm", "pairs": [{"positive": "soft", "negative": "loud"}]}'
PAIRS_JSONL = '{"chosen": "soft", "rejected": "loud"}\n'


@pytest.mark.parametrize(("content", "form"), [(PROMPTS_JSON, "json"), (PROMPTS_JSONL, "jsonl")])
@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows"])
def test_the_shape_of_prompts_is_seen_from_the_content_and_not_from_the_name(tmp_path: Path, content: str, form: str, name: str):
    found = read_prompts(write(tmp_path / name, content))
    assert found.rows == [Prompt("one"), Prompt(" two ")]
    assert found.format == form


@pytest.mark.parametrize(("content", "form", "trait"), [(PAIRS_JSON, "json", "calm"), (PAIRS_JSONL, "jsonl", None)])
@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows"])
def test_the_shape_of_pairs_is_seen_from_the_content_and_not_from_the_name(tmp_path: Path, content: str, form: str, trait: str, name: str):
    found = read_pairs(write(tmp_path / name, content))
    assert found.rows == [Pair(None, "soft", "loud", trait)]
    assert (found.format, trait_of(found.rows)) == (form, trait)


def test_a_single_line_is_one_row(file: Path):
    assert read_prompts(write(file, '{"prompt": "one"}')).rows == [Prompt("one")]
    assert read_pairs(write(file, '{"chosen": "a", "rejected": "b"}')).rows == [Pair(None, "a", "b")]


def test_further_columns_of_a_row_are_kept(file: Path):
    prompts = read_prompts(write(file, '{"id": 7, "prompt": "one", "answer": {"n": [1, null]}}'))
    assert prompts.rows[0].extra == {"id": 7, "answer": {"n": [1, None]}}
    pairs = read_pairs(write(file, '{"prompt": "p", "chosen": "a", "rejected": "b", "score": 0.5}'))
    assert pairs.rows == [Pair("p", "a", "b", None, {"score": 0.5})]
    seed = read_pairs(write(file, '{"trait_name": "t", "pairs": [{"positive": "a", "negative": "b", "id": 1}]}'))
    assert seed.rows == [Pair(None, "a", "b", "t", {"id": 1})]


def test_pairs_with_and_without_a_prompt_may_stand_together(file: Path):
    content = '{"prompt": "p", "chosen": "a", "rejected": "b"}\n{"chosen": "c", "rejected": "d"}\n'
    assert [pair.prompt for pair in read_pairs(write(file, content)).rows] == ["p", None]


def test_a_text_is_kept_as_it_is_written(file: Path):
    text = "  e\u0301\u2028\u0085\ttwo\r\nlines \U0001f600 "
    assert read_prompts(write(file, json.dumps({"prompt": text}, ensure_ascii=False))).rows[0].prompt == text
    assert read_prompts(write(file, json.dumps({"prompts": [text]}))).rows[0].prompt == text


@pytest.mark.parametrize("content", [PROMPTS_JSON, PROMPTS_JSONL])
def test_a_byte_order_mark_changes_nothing(file: Path, content: str):
    assert read_prompts(write(file, BOM + content.encode())).rows == read_prompts(write(file, content)).rows


@pytest.mark.parametrize("content", ["{}\r\n{}\r\n", "\n\n{}\n \n\t\n{}\n\n\n", "{}\n{}"])
def test_line_ends_of_windows_and_blank_lines_are_accepted(file: Path, content: str):
    content = content.replace("{}", '{"prompt": "one"}', 1).replace("{}", '{"prompt": " two "}', 1)
    assert [row.prompt for row in read_prompts(write(file, content)).rows] == ["one", " two "]


def test_rows_are_named_by_their_line_and_by_their_index_in_one_object(file: Path):
    assert places(read_prompts(write(file, '\n{"prompt": "a"}\n\n{"prompt": "b"}'))) == ("rows:2", "rows:4")
    assert places(read_prompts(write(file, '{"prompts": ["a",\n"b"]}'))) == ("rows:1 prompts[0]", "rows:2 prompts[1]")


def test_keys_beside_the_rows_that_nothing_reads_are_told(file: Path):
    assert read_prompts(write(file, '{"note": "x", "prompts": ["a"]}')).remarks == (
        "note is not a key that is read here; its value changes nothing",
    )
    assert read_pairs(write(file, PAIRS_JSON.replace("{", '{"note": 1, ', 1))).remarks == (
        "note is not a key that is read here; its value changes nothing",
    )


def test_the_trait_of_a_set_is_the_one_that_all_its_rows_name(file: Path):
    row = '{{"chosen": "a", "rejected": "b", "trait_name": "{}"}}\n'
    assert trait_of(read_pairs(write(file, row.format("calm") * 2)).rows) == "calm"
    assert trait_of(read_pairs(write(file, row.format("calm") + row.format("loud"))).rows) is None


@pytest.mark.parametrize("content", ["", "\n \r\n", BOM, '{"prompts": []}'])
def test_no_prompts_are_refused(file: Path, content: str | bytes):
    (line,) = refused(read_prompts, write(file, content))
    assert line.startswith("rows:")
    assert "prompt set contains no prompts" in line


@pytest.mark.parametrize(("content", "name"), [("", "rows"), ('{"pairs": []}', "rows"), ('{"trait_name": "calm", "pairs": []}', "calm")])
def test_no_pairs_are_refused_by_the_name_of_the_set(file: Path, content: str, name: str):
    (line,) = refused(read_pairs, write(file, content))
    assert line.startswith("rows:")
    assert f"pair set {name} contains no pairs" in line


@pytest.mark.parametrize("side", ["positive", "negative"])
@pytest.mark.parametrize("text", ["", " ", "\\n", "\u00a0"])
def test_an_empty_side_is_refused_by_line_index_and_name_of_the_set(file: Path, side: str, text: str):
    pair = {"positive": "a", "negative": "b"}
    broken = json.dumps({**pair, side: "@"}).replace("@", text)
    (line,) = refused(read_pairs, write(file, f'{{"trait_name": "calm", "pairs": [\n{json.dumps(pair)},\n{broken}]}}'))
    assert line.startswith("rows:3:")
    assert f"pairs[1].{side} " in line
    assert "pair set calm contains an empty positive or negative prompt" in line


def test_an_empty_side_of_a_line_is_refused_by_the_path_of_the_set(file: Path):
    (line,) = refused(read_pairs, write(file, PAIRS_JSONL + '{"chosen": "", "rejected": "b"}'))
    assert line.startswith("rows:2:12: chosen is empty; pair set rows contains an empty positive or negative prompt")


NO_TEXT = "a text or a list of messages is expected; put one there"
WRONG_TEXTS = [
    ("null", "is null", NO_TEXT),
    ("3", "is a number (3)", NO_TEXT),
    ("true", "is true", NO_TEXT),
    ("{}", "is an object", NO_TEXT),
    ('""', "is empty", "a text is expected; put one there or remove the row"),
    ('" \\n"', "holds nothing but whitespace", "a text is expected; put one there or remove the row"),
    ('"\\u200b\\ufeff"', "holds nothing but characters that cannot be seen", "a text is expected; put one there or remove the row"),
    ('"a\\u0007"', "holds the control character U+0007, its character 2", "of such only tabs and line ends are text; remove it"),
]


@pytest.mark.parametrize(("value", "found", "expected"), WRONG_TEXTS)
def test_what_is_not_a_text_with_something_in_it_is_refused_with_its_place(file: Path, value: str, found: str, expected: str):
    if value != "{}":  # an object in the list is a row
        (line,) = refused(read_prompts, write(file, f'{{"prompts": ["a",\n  {value}]}}'))
        assert line == f"rows:2:3: prompts[1] {found}; {expected}"
    (line,) = refused(read_prompts, write(file, f'{{"prompt": "a"}}\n{{"prompt": {value}}}'))
    assert line == f"rows:2:12: prompt {found}; {expected}"
    (line,) = refused(read_pairs, write(file, f'{{"chosen": "a", "rejected": {value}}}\n'))
    assert line.startswith(f"rows:1:29: rejected {found}; ")
    (line,) = refused(read_pairs, write(file, f'{{"chosen": "a", "rejected": "b", "prompt": {value}}}\n'))
    assert line == f"rows:1:44: prompt {found}; {expected}"
    (line,) = refused(read_pairs, write(file, f'{{"trait_name": {value}, "pairs": [{{"positive": "a", "negative": "b"}}]}}'))
    assert line.startswith(f"rows:1:16: trait_name {found}; ")


@pytest.mark.parametrize(
    ("read", "content", "expected"),
    [
        (read_prompts, '{"prompt": "a"}\n7', "rows:2:1: the row is a number (7); an object with prompt is expected"),
        (read_prompts, '{"prompt": "a"}\n{"q": 1}', "rows:2:1: prompt is missing, the row has the keys q; "),
        (read_prompts, '{"q": "a"}\n{"q": "b"}', "rows:1:1: prompt is missing, the row has the keys q; "),
        (read_prompts, '{"prompt": "a"}\n{}', "rows:2:1: prompt is missing, the row has no keys; "),
        (read_pairs, '{"chosen": "a"}', "rows:1:1: rejected is missing, the row has the keys chosen; "),
        (read_pairs, '{"pairs": [["a", "b"]]}', "rows:1:12: pairs[0] is a list; an object with chosen and rejected is expected"),
        (read_pairs, '{"pairs": [{"positive": "a"}]}', "rows:1:12: pairs[0].negative is missing, the row has the keys positive; "),
        (read_pairs, '{"pairs": "a"}', "rows:1:11: pairs is a text; a list is expected"),
        (read_prompts, '{"prompts": null}', "rows:1:13: prompts is null; a list is expected"),
        (read_pairs, '["a"]', "rows:1:2: [0] is a text; an object with chosen and rejected is expected; "),
        (read_pairs, '{"a": 1,\n"b": 2}', "rows:1:1: the file holds an object with the keys a, b; "),
        (read_prompts, PAIRS_JSON, "rows:1:1: the file holds an object with the keys trait_name, pairs; "),
        (read_pairs, PROMPTS_JSON, "rows:1:1: the file holds an object with the keys prompts; "),
        (read_prompts, " 3 ", "rows:1:2: the file holds a number (3); "),
        (
            read_pairs,
            '{"pairs": [{"positive": "a", "negative": "b", "chosen": "c"}]}',
            "rows:1:57: pairs[0].chosen stands beside positive and negative; ",
        ),
    ],
)
def test_a_row_of_another_shape_is_refused_with_what_it_is(file: Path, read: Any, content: str, expected: str):
    first = refused(read, write(file, content))[0]
    assert first.startswith(expected), first


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"prompts": ["a",]}', "rows:1:18: broken JSON: a comma after the last item, found "),
        ('{"prompts": ["a"\n"b"]}', "rows:2:1: broken JSON: expecting ',' delimiter, found "),
        ('{"prompts": ["a"]', "rows:1:18: broken JSON: expecting ',' delimiter, found the end; "),
        ('{"prompts": ["a"]}\n}', "rows:2:1: broken JSON: extra data, found "),
        ('{"prompts": ["a"]}{"prompts": ["b"]}', "rows:1:19: broken JSON: extra data, found "),
        ('{"prompt": "a"}{"prompt": "b"}', "rows:1:16: broken JSON: extra data, found "),
        ('{"prompt": "a"}\n{"prompt": "b",}', "rows:2:16: broken JSON: a comma after the last item"),
        ('{"prompt": "a",}\n{"prompt": "b"}', "rows:1:16: broken JSON: a comma after the last item"),
        ('{"prompt": "a"}\n{"prompt": "b', "rows:2:12: broken JSON: unterminated string starting at"),
        ('{"prompt": "a\tb"}', "rows:1:14: broken JSON: a line end or another control character as it is inside a string"),
        ('{"prompts": [NaN]}', "rows:1:14: NaN is no finite number of at most 4000 digits"),
        ('{"prompt": "a"}\n{"prompt": "b", "x": -Infinity}', "rows:2:22: -Infinity is no finite number of at most 4000 digits"),
        ('{"prompt": "a", "x": [1, 1e999]}', "rows:1:26: 1e999 is no finite number of at most 4000 digits"),
        ('{"prompt": "a", "x": %s}' % ("9" * 5000), "rows:1:22: 99999999999999999999... is no finite number"),
        ('{"prompts": ["a"], "prompts": ["b"]}', 'rows:1:20: the key "prompts" stands twice in one object; '),
        ('{"prompt": "a"}\n{"prompt": "b", "x": {"y": 1, "y": 2}}', 'rows:2:31: the key "y" stands twice in one object; '),
        ('{"prompts": ["a", "\\ud800"]}', "rows:1:19: a lone surrogate escape"),
        ('{"prompt": "a", "x": {"\\uDC00": 1}}', "rows:1:23: a lone surrogate escape"),
        ("[" * 100_000, "rows:1:1: the JSON is nested too deeply"),
        ("[text]", "rows:1:2: broken JSON: expecting value"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_line_and_column(file: Path, content: str, expected: str):
    (line,) = refused(read_prompts, write(file, content))
    assert line.startswith(expected), line


def test_a_surrogate_pair_is_a_character(file: Path):
    assert read_prompts(write(file, '{"prompt": "\\ud83d\\ude00"}')).rows == [Prompt("\U0001f600")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"prompt": "a"}\n{"prompt": "né"}\n'.encode("latin-1"), "rows:2:14: byte 0xe9 (byte 14 of the line) is not UTF-8; "),
        (BOM + b'{"prompts": ["\xc3\xa9\xc0"]}', "rows:1:16: byte 0xc0 (byte 17 of the line) is not UTF-8; "),
        (b'{"prompt": "a"}\n' * 4999 + b'{"prompt": "\xc0"}\n', "rows:5000:13: byte 0xc0"),
        (PROMPTS_JSON.encode("utf-16"), "rows:1:1: the file is UTF-16 or UTF-32; "),
        (PROMPTS_JSON.encode("utf-16-le"), "rows:1:1: the file is UTF-16 or UTF-32; "),
        (PROMPTS_JSON.encode("utf-32"), "rows:1:1: the file is UTF-16 or UTF-32; "),
        (b'{"prompt": "\xed\xa0\x80"}', "rows:1:13: byte 0xed"),
    ],
)
def test_another_encoding_is_refused_with_line_and_byte(file: Path, content: bytes, expected: str):
    (line,) = refused(read_prompts, write(file, content))
    assert line.startswith(expected), line


def test_all_problems_are_told_at_once_in_the_order_of_the_file(file: Path):
    content = '{"chosen": 1}\n{"chosen": "a",}\n{"chosen": "", "rejected": null}\n{"chosen": NaN, "chosen": "b"}\n'
    lines = refused(read_pairs, write(file, content))
    assert [line.split(": ")[0] for line in lines] == ["rows:1:1", "rows:2:16", "rows:3:12", "rows:3:28", "rows:4:12", "rows:4:17"]
    assert [line.split(": ")[0] for line in refused(read_prompts, write(file, b"\xc0\n\n\xc1"))] == ["rows:1:1", "rows:3:1"]


def test_problems_beyond_the_twentieth_are_counted(file: Path):
    lines = refused(read_prompts, write(file, '{"prompt": null}\n' * 25))
    assert len(lines) == 21
    assert lines[-1] == "... and 5 more problems"


def test_a_file_that_cannot_be_read_is_refused_by_its_path(file: Path):
    for path in (Path("absent"), Path()):
        with pytest.raises(DataError, match=rf"^{path}: cannot be read \("):
            read_prompts(path)


def test_reading_does_not_depend_on_the_locale(file: Path):
    write(file, '{"prompt": "é\u2028"}')
    program = "from pathlib import Path; from stages.files.intake import sets; "
    program += "print(ascii(sets.read_prompts(Path('rows'), 'auto', {}).rows[0].prompt))"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ascii("é\u2028")


@needs_shared
def test_real_files_are_read_whole():
    pairs = read_pairs(SHARED / "gsm8k_pairs.jsonl")
    assert (len(pairs.rows), pairs.format, trait_of(pairs.rows)) == (240, "jsonl", None)
    assert all(pair.prompt for pair in pairs.rows)
    prompts = read_prompts(SHARED / "gsm8k_prompts.jsonl")
    assert len(prompts.rows) == 100
    assert all(set(row.extra) == {"answer"} for row in prompts.rows)


CONTROLS = "\u0000 \u0008 \u000b \u000c \u001f \u007f \u0084 \u0086 \u009f \ufdd0 \ufdef \ufffe"
UNDRAWN = "\u00ad \u061c \u180e \u200e \u202e \u2060 \u206f \ufff9 \u3164 \u2800 \ufe0f \u0301 \u115f \U000e0041 \u200b\ufeff"


@pytest.mark.parametrize("character", CONTROLS.split(" "))
def test_controls_and_noncharacters_are_refused_by_place(file: Path, character: str):
    (line,) = refused(read_prompts, write(file, json.dumps({"prompt": f"ab{character}"})))
    kind = "noncharacter" if character > "\u2000" else "control character"
    assert line.startswith(f"rows:1:12: prompt holds the {kind} U+{ord(character):04X}, its character 3; ")


@pytest.mark.parametrize("character", ["\t", "\n", "\r", "\u0085", "\u2028", "\u00ad", "\u200b", "\ufeff"])
def test_tabs_line_ends_and_marks_of_format_beside_letters_are_text(file: Path, character: str):
    assert read_prompts(write(file, json.dumps({"prompt": f"a{character}b"}))).rows == [Prompt(f"a{character}b")]


@pytest.mark.parametrize("text", UNDRAWN.split(" "))
def test_a_text_of_nothing_that_is_drawn_is_refused(file: Path, text: str):
    (line,) = refused(read_prompts, write(file, json.dumps({"prompt": text})))
    assert "prompt holds nothing but characters that cannot be seen; " in line


@pytest.mark.parametrize("text", ["a", "\u4f60", "\U0001f600", "!", "e\u0301", "\u0915\u0940"])
def test_a_single_character_that_is_drawn_is_a_text(file: Path, text: str):
    assert read_prompts(write(file, json.dumps({"prompt": text}))).rows == [Prompt(text)]


def test_flaws_of_a_whole_document_are_told_with_the_problems_of_its_rows(file: Path):
    content = '{"prompts": ["a",\n {"prompt": "b", "x": 1, "x": 2},\n null,\n NaN, ""]}'
    assert [line.partition(" is ")[0].partition(" stands")[0] for line in refused(read_prompts, write(file, content))] == [
        'rows:2:26: the key "x"',
        "rows:4:2: NaN",
        "rows:3:2: prompts[2]",
        "rows:4:7: prompts[4]",
    ]


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "-1e999", "9" * 4001, "-" + "9" * 4001])
def test_numbers_that_json_or_python_cannot_have_are_refused_wherever_they_stand(file: Path, number: str):
    (line,) = refused(read_prompts, write(file, f'{{"prompt": "a", "x": {number}}}'))
    assert line.startswith(f"rows:1:22: {number if len(number) <= 20 else number[:20] + '...'} is no finite number of at most 4000 digits")
    assert read_prompts(write(file, f'{{"prompt": "a", "x": {"9" * 4000}}}')).rows


def test_a_broken_first_line_does_not_make_a_file_of_lines_a_document(file: Path):
    content = '{"prompt": "a"\n{"prompt": "b"}\n'
    (line,) = refused(read_prompts, write(file, BOM + content.encode()))
    assert line.startswith("rows:1:15: broken JSON: ")
    assert refused(read_prompts, write(file, '{\n"prompts": ["a"]\n"x": 1}'))[0].startswith(
        "rows:3:1: broken JSON: expecting ',' delimiter"
    )
    assert read_prompts(write(file, BOM + b'{\n"prompts": ["a"]}')).rows == [Prompt("a")]


def test_a_trait_is_kept_once_and_names_the_set_in_a_refusal(file: Path):
    row = {"chosen": "a", "rejected": "b", "trait_name": "calm"}
    assert read_pairs(write(file, json.dumps(row))).rows == [Pair(None, "a", "b", "calm")]
    assert (
        "; pair set calm contains an empty positive or negative prompt; "
        in refused(read_pairs, write(file, json.dumps({**row, "rejected": ""})))[0]
    )
    assert read_prompts(write(file, '{"trait_name": "calm", "prompts": ["a"]}')).remarks == (
        "trait_name is not a key that is read here; its value changes nothing",
    )


def test_strings_are_named_among_the_texts_after_messages(file: Path):
    content = '{"chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant", "content": "b"}]}\n' + PAIRS_JSONL * 2
    assert read_pairs(write(file, content)).texts == "strings, messages"


def test_prompts_of_a_file_of_pairs_keep_the_sides_as_further_columns(file: Path):
    row = {"prompt": "p", "chosen": "a", "rejected": "b"}
    assert read_prompts(write(file, json.dumps(row))).rows == [Prompt("p", {"chosen": "a", "rejected": "b"})]


def test_a_path_with_colons_and_spaces_hides_no_problem(file: Path):
    odd = file.with_name("a: b c")
    lines = refused(read_prompts, write(odd, '{"prompts": ["a", NaN, null, 3]}'))
    assert [line.partition(";")[0] for line in lines] == [
        "a: b c:1:19: NaN is no finite number of at most 4000 digits, which is expected",
        "a: b c:1:24: prompts[2] is null",
        "a: b c:1:30: prompts[3] is a number (3)",
    ]


def test_the_trait_of_a_row_goes_before_the_sets(file: Path):
    content = (
        '{"trait_name": "calm", "pairs": [{"positive": "a", "negative": "b", "trait_name": "loud"}, {"positive": "c", "negative": "d"}]}'
    )
    assert [pair.trait_name for pair in read_pairs(write(file, content)).rows] == ["loud", "calm"]


def test_an_object_that_begins_on_a_later_line_is_a_row_of_that_line(file: Path):
    found = read_pairs(write(file, '\n\n{\n"chosen": "a", "rejected": "b"\n}\n'))
    assert (found.rows, found.format, found.place(0)) == ([Pair(None, "a", "b")], "json", "rows:3")


@pytest.mark.parametrize(
    ("content", "starts"),
    [
        ('{"a": 1}\n\n', ["rows:1:1: the file holds an object with the keys a; "]),
        ('{"prompt": "a"\n{"prompt": "b"\n{"prompt": "c"}\n{"prompt": "d"}', ["rows:1:15: broken JSON: ", "rows:2:15: broken JSON: "]),
        (" \n", ["rows: prompt set contains no prompts; "]),
    ],
)
def test_odd_beginnings_are_told_as_what_they_are(file: Path, content: str, starts: list[str]):
    lines = refused(read_prompts, write(file, content))
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


def test_much_white_space_before_the_rows_is_passed_over(file: Path):
    assert read_prompts(write(file, "\n" * 200_000 + '["a"]')).rows == [Prompt("a")]
    assert read_prompts(write(file, '\n"a"\n"b, c"\n')).format == "jsonl"


def test_a_message_shows_no_more_than_it_must(file: Path):
    for value in ('[{"role": "%s", "content": "a"}]' % ("x" * 1000), "9" * 3000, '[{"role": "user", "content": %s}]' % ("9" * 3000)):
        (line,) = refused(read_prompts, write(file, f'{{"prompt": {value}}}'))
        assert len(line) < 300

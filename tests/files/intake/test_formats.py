"""CSV and Parquet, which format a file is taken for, and what is said of one that is none."""

import contextlib
import dataclasses
import datetime
import decimal
import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from stages.core.errors import SettingsError
from stages.core.settings.data import Data
from stages.files.intake import reading
from stages.files.intake.rows import FORMATS
from stages.files.records import Message, Pair, Prompt
from tests.files.intake.files import read_pairs, read_prompts, refused, write

ROWS = [Pair("p", 'a, "b"\nc', "d", None, {"id": "1"}), Pair("q;", "e\t", "f", None, {"id": "2"})]
CSV = 'prompt,chosen,rejected,id\np,"a, ""b""\nc",d,1\nq;,"e\t",f,2\n'


def parquet(file: Path, columns: dict[str, Any], **options: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), file, **options)
    return file


@pytest.mark.parametrize("name", ["rows.csv", "rows.json", "rows"])
@pytest.mark.parametrize(
    "content",
    [
        CSV,
        CSV.replace("\n", "\r\n").replace('"b""\r\nc', '"b""\nc'),
        "\ufeff" + CSV,
        "\n\n" + CSV + "\n\n",
        CSV.rstrip("\n"),
        CSV.replace("prompt,chosen", ' prompt , "chosen"', 1).replace(' "chosen"', '"chosen"'),
    ],
    ids=["plain", "crlf", "bom", "blank", "no end", "header"],
)
def test_a_table_of_commas_is_read_by_its_header(tmp_path: Path, content: str, name: str):
    found = read_pairs(write(tmp_path / name, content))
    assert (found.rows, found.format, found.texts) == (ROWS, "csv", "strings")


def test_semicolons_and_tabs_may_stand_between_the_fields(file: Path):
    for between in ";\t":
        assert read_prompts(write(file, f'prompt{between}answer\n"a{between}b"{between}c\n')).rows == [
            Prompt(f"a{between}b", {"answer": "c"})
        ]


def test_a_record_is_named_by_its_first_line_and_a_field_by_where_it_begins(file: Path):
    found = read_pairs(write(file, CSV))
    assert [found.place(index) for index in range(2)] == ["rows:2", "rows:4"]
    content = 'chosen,rejected,prompt\n"a\nb",c,d\n"e, ""\nf","", \n'
    assert [line.partition(";")[0] for line in refused(read_pairs, write(file, content))] == [
        "rows:5:7: prompt holds nothing but whitespace",
        "rows:5:4: rejected is empty",
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "prompt,answer\na,b\nc\nd,e,f\n",
            ["rows:3:1: the record has 1 of the header's 2 fields; ", "rows:4:1: the record has 3 of the header's 2 fields; "],
        ),
        ("prompt,x,x\na,b,c\n", ["rows:1:1: the header names 'x' twice; each column once is expected; rename one"]),
        ('prompt,x\na,"b\nc\nd', ["rows:2:1: broken CSV: unexpected end of data; "]),
        ('prompt,x\na,b\nc,"b"d\ne,f\n', ["rows:3:1: broken CSV: ',' expected after '\"'; "]),
        ('prompt\na\n\n""\n', ["rows:4:1: prompt is empty; "]),
        ("prompt\na\u0007\n", ["rows:2:1: prompt holds the control character U+0007, its character 2; "]),
        ("prompt\n", ["rows: prompt set contains no prompts; "]),
        (b"prompt\nn\xe9\n\nn\xe9\n", ["rows:2:2: byte 0xe9 (byte 2 of the line) is not UTF-8; ", "rows:4:2: byte 0xe9 "]),
    ],
)
def test_a_broken_table_is_refused_by_line_and_column(file: Path, content: str | bytes, expected: list[str]):
    lines = refused(read_prompts, write(file, content))
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=True)] == expected


def test_a_field_may_be_larger_than_the_csv_modules_own_limit(file: Path):
    assert read_prompts(write(file, f"prompt\n{'a' * 200_000}\n")).rows == [Prompt("a" * 200_000)]


def test_a_parquet_file_is_read_with_strings_messages_and_further_columns(file: Path):
    turns = [{"role": "user", "content": "p"}]
    pair = {"prompt": ["p", "q"], "chosen": ["a", "b"], "rejected": ["c", "d"]}
    day = datetime.datetime(2026, 1, 2, 3, 4, 5)
    extra: dict[str, Any] = {"id": [1, None], "score": [0.5, float("nan")], "day": [day, day], "price": [decimal.Decimal("1.50"), None]}
    found = read_pairs(parquet(file, {**pair, **extra, "tags": [["x"], []]}))
    assert (found.format, found.place(1)) == ("parquet", "rows row 2")
    assert found.rows == [
        Pair("p", "a", "c", None, {"id": 1, "score": 0.5, "day": "2026-01-02T03:04:05", "price": "1.50", "tags": ["x"]}),
        Pair("q", "b", "d", None, {"id": None, "score": None, "day": "2026-01-02T03:04:05", "price": None, "tags": []}),
    ]
    assert read_prompts(parquet(file, {"prompt": [turns]})).rows == [Prompt((Message("user", "p"),))]
    # a struct has every key in every message
    answered = [*turns, {"role": "assistant", "content": "a", "tool_calls": None}]
    assert read_pairs(parquet(file, {"chosen": [answered], "rejected": [[*answered[:1], {"role": "assistant", "content": "b"}]]})).rows == [
        Pair((Message("user", "p"),), "a", "b")
    ]


def test_more_rows_than_one_batch_are_read_in_order(file: Path):
    texts = [f"prompt {number}" for number in range(10_000)]
    assert [row.prompt for row in read_prompts(parquet(file, {"prompt": texts}, row_group_size=3000)).rows] == texts


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"prompt": ["a", None, ""]}, ["rows row 2: prompt is null; ", "rows row 3: prompt is empty; "]),
        ({"prompt": ["a"], "image": [b"x"]}, ["rows row 1: image holds a value of type bytes, which JSON cannot have; "]),
        ({"prompt": [3]}, ["rows row 1: prompt is a number (3); "]),
        ({"question": ["a"]}, ["rows row 1: prompt is missing, the row has the keys question; "]),
        ({"prompt": pyarrow.array([], pyarrow.string())}, ["rows: prompt set contains no prompts; "]),
    ],
)
def test_rows_of_a_parquet_file_are_refused_by_their_number(file: Path, columns: dict[str, Any], expected: list[str]):
    lines = refused(read_prompts, parquet(file, columns))
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=True)] == expected


def test_a_damaged_parquet_file_is_refused_in_one_line(file: Path):
    whole = parquet(file, {"prompt": ["a" * 100] * 1000}, compression="none", use_dictionary=False).read_bytes()
    for content in (whole[:200], b"PAR1" + bytes(100), whole[:50] + b"\xff" * 400 + whole[450:]):
        (line,) = refused(read_prompts, write(file, content))
        assert line.startswith("rows"), line
        assert "not readable" in line, line


@pytest.mark.parametrize(
    ("content", "form"),
    [
        ('[{"prompt": "a"}]', "json"),
        ('\n[\n{"prompt": "a"}\n]\n', "json"),
        ('["a"]', "json"),
        ('{"prompts": ["a"]}', "json"),
        ('{\n"prompts": ["a"]\n}', "json"),
        ('{"prompts": [{"prompt": "a"}]}', "json"),
        ('{\n"prompt": "a"\n}', "json"),
        ('{"prompt": "a"}', "jsonl"),
        ("prompt\na\n", "csv"),
        ('"prompt"\n"a"\n', "csv"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_the_format_is_seen_from_the_content_and_may_be_named(file: Path, content: str, form: str, named: bool):
    found = read_prompts(write(file, content), form if named else "auto")
    assert (found.rows, found.format) == ([Prompt("a")], form)


@pytest.mark.parametrize(
    ("content", "form", "expected"),
    [
        ('{"prompt": "a"}\n{"prompt": "b"}', "json", "rows:2:1: broken JSON: extra data"),
        ('[{"prompt": "a"}]', "jsonl", "rows:1:1: the row is a list; an object with prompt is expected"),
        ('{"prompts": ["a"]}', "jsonl", "rows:1:1: prompt is missing, the row has the keys prompts; "),
        ("prompt\na\n", "jsonl", "rows:1:1: broken JSON: "),
        ("prompt\na\n", "json", "rows:1:1: broken JSON: "),
        ('{"prompt": "a"}', "csv", 'rows:1:1: the first line is \'{"prompt": "a"}\'; '),
        ('{"prompt": "a"}', "parquet", "rows: data.format is parquet, and the file is not Parquet by its first bytes; "),
        (b"PAR1x", "jsonl", "rows: data.format is jsonl, and the file is Parquet by its first bytes; "),
        ("", "parquet", "rows: data.format is parquet, and the file is not Parquet by its first bytes; "),
    ],
)
def test_a_file_that_is_not_in_the_format_named_is_refused(file: Path, content: str | bytes, form: str, expected: str):
    assert refused(read_prompts, write(file, content), form)[0].startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (gzip.compress(b'{"prompt": "a"}', mtime=0), "rows: the file is compressed (gzip); "),
        (b"PK\x03\x04abc", "rows: the file is compressed (zip); "),
        ('{"prompt": "a"}\n\ufeff{"prompt": "b"}', "rows:2:1: a byte-order mark stands inside the file, as where two files were joined; "),
        ('{"prompts": ["a"]} {"prompts": ["b"]}', "rows:1:20: broken JSON: extra data"),
        ('{"prompts": ["a"]}\n{"prompts": ["b"]}', "rows:2:1: broken JSON: extra data"),
        ("question,answer\na,b\n", "rows:1:1: the first line is 'question,answer'; JSON, or a CSV header that names prompt, is expected; "),
        (
            "What is up?\nWhat is down?\n",
            "rows:1:1: the first line is 'What is up?'; JSON, or a CSV header that names prompt, is expected; ",
        ),
        (b"ARROW1\0\0abc", "rows: the file is Arrow's own format; "),
    ],
)
def test_a_file_of_no_format_is_refused(file: Path, content: str | bytes, expected: str):
    (line,) = refused(read_prompts, write(file, content))
    assert line.startswith(expected), line


def test_what_is_no_regular_file_is_refused_and_not_waited_for(file: Path):
    os.mkfifo(file)
    (line,) = refused(read_prompts, file)
    assert line.startswith("rows: cannot be read (it is not a regular file); ")


def test_a_line_of_fifty_megabytes_is_a_row_or_a_problem_of_one_short_line(file: Path):
    text = "word " * 10_000_000
    assert read_prompts(write(file, json.dumps({"prompt": text}))).rows == [Prompt(text)]
    (line,) = refused(read_prompts, write(file, '{"prompt": "a"}\n' + json.dumps({"prompt": text})[:-1]))
    assert line.startswith("rows:2:50000014: broken JSON: ")
    assert len(line) < 300


COLUMNS = {"prompt": "question", "chosen": "good", "rejected": "bad"}


def test_columns_may_have_other_names_in_either_file(file: Path):
    assert read_prompts(write(file, '{"question": "a", "answer": 1}'), "auto", COLUMNS).rows == [Prompt("a", {"answer": 1})]
    found = read_pairs(write(file, "question,good,bad\na,b,c\n"), "auto", COLUMNS)
    assert (found.rows, found.mapped) == ([Pair("a", "b", "c")], {"prompt", "chosen", "rejected"})
    found = read_pairs(write(file, '{"prompt": "a", "good": "b", "rejected": "c"}'), "auto", COLUMNS)
    assert (found.rows, found.mapped) == ([Pair("a", "b", "c")], {"chosen"})


def test_a_name_that_one_row_has_must_be_in_every_row_that_has_such_a_text(file: Path):
    content = '{"question": "a"}\n{"prompt": "b"}\n{"question": "c", "prompt": "d"}'
    assert refused(read_prompts, write(file, content), "auto", COLUMNS) == [
        "rows:2:12: the row has no question, which data.columns.prompt names and other rows have; one name in every row is expected; "
        "rename the column"
    ]


def test_a_column_called_as_ours_is_kept_under_another_name_where_data_columns_names_another(file: Path):
    found = read_prompts(write(file, '{"question": "a", "prompt": "b", "x": 1}'), "auto", COLUMNS)
    assert found.rows == [Prompt("a", {"source_prompt": "b", "x": 1})]
    assert found.remarks == (
        "further columns, kept beside each row: source_prompt, x",
        "its column prompt is kept as source_prompt, since data.columns names another",
    )
    taken = read_prompts(write(file, '{"question": "a", "prompt": "b", "source_prompt": "c"}'), "auto", COLUMNS)
    assert taken.rows == [Prompt("a", {"source_source_prompt": "b", "source_prompt": "c"})]
    assert taken.remarks[1] == "its column prompt is kept as source_source_prompt, since data.columns names another"
    content = '{"prompt": "p", "good": "a", "bad": "b", "chosen": "c", "positive": "d"}'
    assert read_pairs(write(file, content), "auto", COLUMNS).rows == [Pair("p", "a", "b", None, {"source_chosen": "c", "positive": "d"})]


def test_absent_columns_are_told_once_with_how_many_more_rows_lack_them(file: Path):
    content = '{"chosen": "a"}\n{"chosen": "b"}\n{"x": 1}\n{"chosen": "a", "rejected": ""}\n{"chosen": "c"}\n'
    lines = refused(read_pairs, write(file, content))
    assert [line.split("; ")[0] for line in lines] == [
        "rows:1:1: rejected is missing, the row has the keys chosen",
        "rows:3:1: chosen and rejected are missing, the row has the keys x",
        "rows:4:29: rejected is empty",
    ]
    assert lines[0].endswith("; so in 2 more rows")
    assert "more rows" not in lines[1]


def test_pairs_of_which_none_has_a_prompt_are_told_of_the_columns_that_might_be_it(file: Path):
    content = '{"question": "q", "chosen": "a", "rejected": "b"}'
    assert read_pairs(write(file, content)).remarks[-1] == (
        "no pair has a prompt; where a further column (question) is it, data.columns.prompt names it"
    )
    assert len(read_pairs(write(file, content.replace("question", "prompt").replace("}", ', "id": 1}'))).remarks) == 1


def test_strings_that_read_as_transcripts_are_told_of_where_the_format_is_named(file: Path):
    content = json.dumps({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"})
    assert read_pairs(write(file, content), "jsonl").remarks == (
        "2 strings read as transcripts, and are taken as they are, since data.format is jsonl",
    )


def test_an_empty_file_is_called_so(file: Path):
    assert refused(read_pairs, write(file, "")) == [
        "rows: pair set rows contains no pairs, the file is empty; at least one is expected; add some"
    ]


def test_prompts_may_be_strings_on_lines(file: Path):
    found = read_prompts(write(file, '"a"\n"b, c"\n'))
    assert (found.rows, found.format, found.place(1)) == ([Prompt("a"), Prompt("b, c")], "jsonl", "rows:2")


def test_a_quote_inside_a_field_opens_nothing_and_takes_no_time(file: Path):
    content = 'chosen,rejected,id\na 5" b 6,7" c\x01,x\n'
    assert [line.partition(";")[0] for line in refused(read_pairs, write(file, content))] == [
        "rows:2:10: rejected holds the control character U+0001, its character 5"
    ]
    content = 'chosen,prompt,rejected\nb"c,,d""e"\n'
    assert refused(read_pairs, write(file, content))[0].startswith("rows:2:5: prompt is empty; ")
    # Between the quote and the end, every way to split the field could be tried: 2 to the power of its length.
    content = f'prompt,answer\nThe 12" board is {"long " * 50_000}, and sold here,x\n'
    start = time.monotonic()
    (line,) = refused(read_prompts, write(file, content))
    assert line.startswith("rows:2:1: the record has 3 of the header's 2 fields; ")
    assert time.monotonic() - start < 5


def test_places_in_records_of_every_line_end_and_quoting(file: Path):
    for end in ("\n", "\r\n", "\r"):
        content = end.join(["chosen,rejected", '"a ""b""', 'c",d', '"e",', ""])
        (line,) = refused(read_pairs, write(file, content))
        assert line.startswith("rows:4:5: rejected is empty; "), (end, line)


def test_blank_lines_of_a_table_are_passed_over_and_counted(file: Path):
    assert read_pairs(write(file, "\n \nchosen,rejected\na,b\n\n  \nc,d\n")).numbers.tolist() == [4, 7]
    assert refused(read_pairs, write(file, "\n \nchosen,chosen\n"))[0].startswith("rows:3:1: the header names 'chosen' twice; ")


def test_tables_of_pairs_may_have_the_seeds_names(file: Path):
    assert read_pairs(write(file, "positive,negative\na,b\n")).rows == [Pair(None, "a", "b")]


def test_a_row_that_has_a_column_called_as_a_set_is_a_row(file: Path):
    assert read_prompts(write(file, '{"prompt": "x", "prompts": ["y"]}\n{"prompt": "z"}\n')).rows == [
        Prompt("x", {"prompts": ["y"]}),
        Prompt("z"),
    ]


def test_a_mapped_column_is_read_in_every_row_that_has_it_whatever_the_first_row_is(file: Path):
    pair = '{"question": "q", "chosen": "a", "rejected": "b"}'
    found = read_pairs(write(file, f'{{"chosen": "a", "rejected": "b"}}\n{pair}'), "jsonl", {"prompt": "question"})
    assert [row.prompt for row in found.rows] == [None, "q"]
    assert len(refused(read_pairs, write(file, f"null\n{pair}\n{pair}"), "jsonl", {"prompt": "question"})) == 1


def test_sides_that_are_mapped_in_some_rows_and_not_in_others_are_refused(file: Path):
    content = '{"chosen":"x","rejected":"y"}\n{"good":"p","bad":"q","chosen":"x","rejected":"y"}\n'
    assert [line.partition(",")[0] for line in refused(read_pairs, write(file, content), "auto", COLUMNS)] == [
        "rows:1:11: the row has no good",
        "rows:1:26: the row has no bad",
    ]


TWICE: list[dict[str, str | None]] = [
    *({"prompt": name} for name in ("chosen", "negative", "trait_name")),
    *({"chosen": name} for name in ("prompt", "rejected", "negative")),
    {"rejected": "positive"},
    {"chosen": "x", "rejected": "x"},
]


@pytest.mark.parametrize("columns", TWICE)
def test_one_column_is_not_read_as_two_texts(file: Path, columns: dict[str, str | None]):
    write(file, '{"prompt": "p", "chosen": "a", "rejected": "b", "x": "c", "trait_name": "t"}')
    told = r"the column \w+ is read as the \w+ already; each text has one of its own; name another"
    with pytest.raises(SettingsError, match=rf"^data\.columns\.(prompt|chosen|rejected): {told}"):
        read_pairs(file, "auto", columns)


@pytest.mark.parametrize(
    "columns", [{"chosen": "positive", "rejected": "negative"}, {"chosen": "rejected", "rejected": "chosen"}, {"prompt": "prompt"}]
)
def test_names_that_are_known_may_be_said_and_sides_may_be_exchanged(file: Path, columns: dict[str, str | None]):
    (pair,) = read_pairs(
        write(file, '{"positive": "a", "negative": "b"}' if "positive" in columns.values() else '{"chosen": "b", "rejected": "a"}'),
        "auto",
        columns,
    ).rows
    assert (pair.chosen, pair.rejected) == (("b", "a") if "prompt" in columns else ("a", "b"))


def test_a_parquet_column_that_stands_twice_or_holds_what_json_cannot_is_refused(file: Path):
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays([["a"], ["b"]], names=["prompt", "prompt"]), file)
    assert refused(read_prompts, file)[0].startswith("rows: it has the column 'prompt' twice; ")
    (line,) = refused(read_prompts, parquet(file, {"prompt": ["a"], "x": [float("inf")]}))
    assert line.startswith("rows row 1: x holds inf, which JSON cannot have; ")
    far = pyarrow.array([2**62, 1], pyarrow.timestamp("us"))
    (line,) = refused(read_prompts, parquet(file, {"prompt": ["a", "b"], "x": far}))
    assert line.startswith("rows row 1: not readable from here on (")


def test_values_within_a_parquet_column_become_what_json_has(file: Path):
    nested = [{"at": datetime.time(1, 2), "gone": datetime.timedelta(seconds=3), "list": [float("nan"), 1.5]}]
    assert read_prompts(parquet(file, {"prompt": ["a"], "x": nested})).rows == [
        Prompt("a", {"x": {"at": "01:02:00", "gone": "0:00:03", "list": [None, 1.5]}})
    ]


def test_batches_of_one_row_group_are_read_in_order(file: Path):
    texts = [f"prompt {number}" for number in range(9_000)]
    found = read_prompts(parquet(file, {"prompt": texts}))
    assert ([row.prompt for row in found.rows], found.place(8999)) == (texts, "rows row 9000")


def test_many_problems_in_one_row_take_time_by_their_number_and_no_more(file: Path):
    row = {"prompt": [{"role": "bad", "content": "x"}] * 4000}
    start = time.monotonic()
    assert len(refused(read_prompts, write(file, json.dumps(row)))) == 21
    assert len(refused(read_prompts, write(file, json.dumps([row])))) == 21
    assert time.monotonic() - start < 10  # walking the row anew for each takes minutes


def test_the_keys_of_a_row_are_told_on_one_short_line(file: Path):
    row = {"a\r\x1b[31m\u2028": 1, "b" * 1000: 2, **{str(number): 3 for number in range(5000)}}
    (line,) = refused(read_prompts, write(file, json.dumps(row) + "\n{}\n"))[:1]
    assert len(line) < 500
    assert line.isprintable()
    assert f"{'b' * 40}..., 0, 1, " in line
    assert " and 4982 more; " in line


def test_nesting_behind_a_flaw_is_refused_too(file: Path):
    for flaw in ('{"k": 1, "k": 2}', "NaN", "1e999"):
        content = f'{{"prompt": "a", "z": {flaw}, "x": {"[" * 100_000}{"]" * 100_000}}}\n'
        assert refused(read_prompts, write(file, content))[0].startswith("rows:1:1: the JSON is nested too deeply")


@pytest.mark.parametrize("columns", [{"prompt": "question"}, {"chosen": "good"}, {"rejected": "bad"}])
def test_two_names_for_one_side_are_refused_where_no_mapping_tells_them_apart(file: Path, columns: dict[str, str | None]):
    content = '{"chosen": "a", "rejected": "b", "positive": "c"}'
    assert "positive stands beside chosen and rejected; " in refused(read_pairs, write(file, content), "auto", columns)[0]


def test_a_column_that_is_mapped_in_no_row_is_no_fault_of_the_rows(file: Path):
    content = '{"question": "q", "chosen": "a", "rejected": "b"}'
    found = read_pairs(write(file, content), "auto", {"prompt": "question", "chosen": "good", "rejected": "bad"})
    assert (found.rows, found.mapped) == ([Pair("q", "a", "b")], {"prompt"})


def test_places_in_quoted_fields_of_many_lines_and_quotes(file: Path):
    for content, place in (('"a\nb\nc",', "4:4"), ('"a ""b"" c",', "2:13"), ("a,", "2:3")):
        (line,) = refused(read_pairs, write(file, f"chosen,rejected\n{content}\n"))
        assert line.startswith(f"rows:{place}: rejected is empty; "), (content, line)


def test_nothing_is_read_behind_a_record_whose_quotes_are_broken(file: Path):
    assert len(refused(read_prompts, write(file, 'prompt,x\nc,"b"d\ne\n'))) == 1


@pytest.mark.parametrize("magic", [b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh91AY&SY", b"\xfd7zXZ\0"])
def test_compressed_files_are_refused_by_name(file: Path, magic: bytes):
    assert " the file is compressed (" in refused(read_prompts, write(file, magic + b"abc"))[0]


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet"])
def test_the_bar_runs_to_the_end_of_the_file_where_bytes_are_counted(file: Path, form: str, monkeypatch: pytest.MonkeyPatch):
    rows = [{"prompt": f"prompt {number}"} for number in range(50)]
    match form:
        case "jsonl":
            write(file, "".join(json.dumps(row) + "\n" for row in rows))
        case "json":
            write(file, json.dumps(rows))
        case "csv":
            write(file, "prompt\n" + "".join(f"{row['prompt']}\n" for row in rows))
        case _:
            parquet(file, {"prompt": [row["prompt"] for row in rows]})
    seen: list[int] = []

    @contextlib.contextmanager
    def bar(total: int, name: str, unit: str):
        seen.append(-total)
        yield seen.append

    monkeypatch.setattr(reading, "bar", bar)
    read_prompts(file)
    assert -seen[0] == file.stat().st_size
    assert len(seen) == 51
    assert 0.8 * file.stat().st_size <= sum(seen[1:]) <= file.stat().st_size


def test_the_formats_that_may_be_set_are_those_that_are_read():
    check = {field.name: field for field in dataclasses.fields(Data)}["format"].metadata["checks"][0]
    assert all(check(form) is None for form in ("auto", *FORMATS, reading.TRANSCRIPTS))
    assert check("") == f"expected one of auto, {', '.join(FORMATS)}, {reading.TRANSCRIPTS}"

"""Texts that are lists of messages, and what prompt and sides make together: every shape, and every refusal with its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from stages.files.records import Message, Pair, Prompt
from tests.files.intake.files import read_pairs, read_prompts, refused, write_rows

U1, A1, U2, A2, A3 = (
    {"role": role, "content": text}
    for role, text in (("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four"), ("assistant", "five"))
)
SYSTEM = {"role": "system", "content": "be calm"}


def turns(*messages: dict[str, str]) -> tuple[Message, ...]:
    return tuple(Message(**message) for message in messages)


def read_pair(file: Path, **row: Any) -> Pair:
    file.write_text(json.dumps(row))
    (pair,) = read_pairs(file).rows
    return pair


@pytest.mark.parametrize(
    "prompt", [[U1], [SYSTEM, U1], [U1, A1, U2], [SYSTEM, U1, A1, U2], [U1, U2]], ids=["user", "system", "turns", "all", "twice"]
)
def test_a_prompt_of_messages_is_a_conversation(file: Path, prompt: list[dict[str, str]]):
    file.write_text(json.dumps({"prompt": prompt, "answer": 3}))
    found = read_prompts(file)
    assert (found.rows, found.texts) == ([Prompt(turns(*prompt), {"answer": 3})], "messages")
    file.write_text(json.dumps({"prompts": [prompt, "plain"]}))
    assert read_prompts(file).rows == [Prompt(turns(*prompt)), Prompt("plain")]
    file.write_text(json.dumps([{"prompt": prompt}]))
    assert read_prompts(file).rows == [Prompt(turns(*prompt))]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # prompt apart from the sides
        ({"prompt": [U1], "chosen": [A1], "rejected": [A2]}, Pair(turns(U1), "two", "four")),
        ({"prompt": "one", "chosen": [A1], "rejected": [A2]}, Pair(turns(U1), "two", "four")),
        ({"prompt": [U1], "chosen": "two", "rejected": "four"}, Pair(turns(U1), "two", "four")),
        ({"prompt": [SYSTEM, U1], "chosen": [A1, U2, A2], "rejected": [A3]}, Pair(turns(SYSTEM, U1), turns(A1, U2, A2), "five")),
        ({"chosen": [A1], "rejected": [A2]}, Pair(None, turns(A1), turns(A2))),
        # prompt within the sides
        ({"chosen": [U1, A1], "rejected": [U1, A2]}, Pair(turns(U1), "two", "four")),
        ({"chosen": [SYSTEM, U1, A1], "rejected": [SYSTEM, U1, A2]}, Pair(turns(SYSTEM, U1), "two", "four")),
        ({"chosen": [U1, A1, U2, A2], "rejected": [U1, A1, U2, A3]}, Pair(turns(U1, A1, U2), "four", "five")),
        # the user's turns differ later on, so what is compared begins with the answer before
        ({"chosen": [U1, A1, U2, A2], "rejected": [U1, A1, U1, A2]}, Pair(turns(U1), turns(A1, U2, A2), turns(A1, U1, A2))),
        ({"chosen": [U1, A1], "rejected": [U1, A1, U2, A2]}, Pair(turns(U1), "two", turns(A1, U2, A2))),
        ({"chosen": [U1, A1], "rejected": [U2, A1]}, Pair(None, turns(U1, A1), turns(U2, A1))),
        ({"chosen": [SYSTEM, U1, A1], "rejected": [U1, A1]}, Pair(None, turns(SYSTEM, U1, A1), turns(U1, A1))),
        ({"chosen": [U1, A1], "rejected": [U1, A1]}, Pair(turns(U1), "two", "two")),
        # and beside them too
        ({"prompt": "one", "chosen": [U1, A1], "rejected": [U1, A2]}, Pair(turns(U1), "two", "four")),
        ({"prompt": [U1], "chosen": [U1, A1], "rejected": [U1, A2]}, Pair(turns(U1), "two", "four")),
        ({"prompt": "one", "chosen": [SYSTEM, U1, A1], "rejected": [SYSTEM, U1, A2]}, Pair(turns(SYSTEM, U1), "two", "four")),
        ({"prompt": [U1], "chosen": [SYSTEM, U1, A1], "rejected": [SYSTEM, U1, A2]}, Pair(turns(SYSTEM, U1), "two", "four")),
    ],
)
def test_a_pair_of_messages_has_its_prompt_apart_from_its_sides(file: Path, row: dict[str, Any], expected: Pair):
    assert read_pair(file, **row) == expected
    seed = {"trait_name": "t", "pairs": [{{"chosen": "positive", "rejected": "negative"}.get(key, key): text for key, text in row.items()}]}
    file.write_text(json.dumps(seed))
    assert read_pairs(file).rows == [expected._replace(trait_name="t")]


def test_prompts_that_were_found_in_the_sides_alone_are_counted(file: Path):
    rows = [{"chosen": [U1, A1], "rejected": [U1, A2]}, {"prompt": "one", "chosen": [U1, A1], "rejected": [U1, A2]}]
    rows += [{"chosen": [A1], "rejected": [A2]}, {"prompt": [U1], "chosen": "a", "rejected": "b"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_pairs(file)
    assert (found.implicit_prompts, found.texts) == (1, "strings, messages")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([], ["rows:1:12: prompt is an empty list; at least one message is expected; "]),
        ([3], ["rows:1:13: prompt[0] is a number (3); a message {role, content} is expected; "]),
        ([{"role": "user"}], ["rows:1:13: prompt[0] has no content; a message {role, content} is expected; "]),
        ([{"content": "a"}], ["rows:1:13: prompt[0] has no role; a message {role, content} is expected; "]),
        ([{"from": "human", "value": "a"}], ["rows:1:13: prompt[0] has from; role and content are expected; "]),
        ([{"role": "human", "content": "a"}], ["rows:1:22: prompt[0].role is 'human'; one of system, user, assistant is expected; "]),
        ([{"role": None, "content": "a"}], ["rows:1:22: prompt[0].role is null; one of system, user, assistant is expected; "]),
        ([{"role": "user", "content": None}], ["rows:1:41: prompt[0].content is null; a text is expected; "]),
        ([{"role": "user", "content": [{"type": "text"}]}], ["rows:1:41: prompt[0].content is a list; a text is expected, and parts "]),
        ([{"role": "user", "content": " "}], ["rows:1:41: prompt[0].content holds nothing but whitespace; "]),
        ([U1, SYSTEM, U2], ["rows:1:49: prompt[1] is a late system turn; at most one is expected, "]),
        ([SYSTEM, SYSTEM, U2], ["rows:1:55: prompt[1] is a second system turn; at most one is expected, "]),
        ([U1, A1], ["rows:1:12: prompt ends with the assistant's turn; the user's is expected last, "]),
        ([SYSTEM], ["rows:1:12: prompt ends with the system's turn; the user's is expected last, "]),
        (
            [{"role": "user", "content": "a", "tool_calls": [{"id": 1}]}],
            ["rows:1:60: prompt[0].tool_calls is of a tool's call, which is not read here; "],
        ),
        ([{"role": "x", "content": 1}], ["rows:1:22: prompt[0].role is 'x'; ", "rows:1:38: prompt[0].content is a number (1); "]),
    ],
)
def test_messages_that_are_none_are_refused_with_the_place_of_each_fault(file: Path, prompt: Any, expected: list[str]):
    lines = refused(read_prompts, write_rows(file, {"prompt": prompt}))
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"chosen": [U1, A1], "rejected": "a"}, "rows:1:103: rejected is a text, and the other side a list of messages; "),
        ({"chosen": "a", "rejected": [U1, A1]}, "rows:1:12: chosen is a text, and the other side a list of messages; "),
        ({"chosen": [U1], "rejected": [U1, A1]}, "rows:1:12: chosen ends with the user's turn; the assistant's, which is compared, "),
        ({"chosen": [U1, A1], "rejected": [U1]}, "rows:1:103: rejected ends with the user's turn; the assistant's, which is compared, "),
        ({"chosen": [U1, A1], "rejected": [A1]}, "rows:1:103: rejected begins with the assistant's turn, and the other side does not; "),
        ({"prompt": "x", "chosen": [U1, A1], "rejected": [U1, A2]}, "rows:1:12: prompt is not what both sides begin with; "),
        ({"prompt": [SYSTEM, U1], "chosen": [U1, A1], "rejected": [U1, A2]}, "rows:1:12: prompt is not what both sides begin with; "),
        ({"prompt": "one", "chosen": [U1, A1], "rejected": [U2, A2]}, "rows:1:12: prompt is not what both sides begin with; "),
        ({"prompt": [A1], "chosen": [A1], "rejected": [A2]}, "rows:1:12: prompt ends with the assistant's turn; "),
    ],
)
def test_texts_that_make_no_pair_are_refused_by_the_one_at_fault(file: Path, row: dict[str, Any], expected: str):
    (line,) = refused(read_pairs, write_rows(file, row))
    assert line.startswith(expected), line


def test_a_mixed_file_is_refused_row_by_row_and_null_is_never_a_text(file: Path):
    rows: list[Any] = [
        "a",
        [U1],
        None,
        4,
        [{"type": "text", "text": "a"}],
        [{**U1, "tool_calls": None}],
        [{"role": "tool", "content": "a"}],
    ]
    lines = refused(read_prompts, write_rows(file, *({"prompt": row} for row in rows), {"prompt": "b", "id": 1}))
    assert [line.split(" ")[0] for line in lines] == ["rows:3:12:", "rows:4:12:", "rows:5:13:", "rows:5:13:", "rows:7:22:"]
    rows = [row for place, row in enumerate(rows) if place in (0, 1, 5)]
    file.write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    assert [row.prompt for row in read_prompts(file).rows] == ["a", turns(U1), turns(U1)]


def test_keys_of_messages_that_hold_something_are_told(file: Path):
    file.write_text(json.dumps({"prompt": [{**U1, "name": "x", "tool_calls": [], "weight": None}]}))
    assert read_prompts(file).remarks == ("name of messages is not a key that is read here; its value changes nothing",)


HH = "\n\nHuman: one\n\nAssistant: {}"


def test_pairs_of_transcripts_have_their_shared_turns_as_prompt(file: Path):
    deep = "\n\nHuman: one\n\nAssistant: two\n\nHuman: three"
    rows = [{"chosen": HH.format("two"), "rejected": HH.format("four ")}]
    rows += [{"chosen": f"{deep}\n\nAssistant: four", "rejected": f"{deep}\n\nAssistant: five"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_pairs(file)
    assert found.rows == [Pair(turns(U1), "two", "four"), Pair(turns(U1, A1, U2), "four", "five")]
    assert (found.texts, found.implicit_prompts) == ("transcripts", 2)


def test_answers_beside_a_transcript_are_its_next_turn(file: Path):
    pair = read_pair(file, prompt=HH.format("")[:-1], chosen=" two", rejected=" four")
    assert pair == Pair(turns(U1), "two", "four")
    assert read_pair(file, prompt=HH.format("")[:-1], chosen=HH.format("two"), rejected=HH.format("four")) == pair


def test_prompts_of_transcripts_may_leave_their_answer_open(file: Path):
    file.write_text(json.dumps({"prompts": ["\n\nHuman: one\n\nAssistant:", "\n\nHuman: one"]}))
    found = read_prompts(file)
    assert (found.rows, found.texts) == ([Prompt(turns(U1)), Prompt(turns(U1))], "transcripts")


def test_a_row_that_is_no_transcript_among_transcripts_is_refused_and_so_is_the_reverse(file: Path):
    whole, plain = ({"chosen": text.format("a"), "rejected": text.format("b")} for text in (HH, "so {}"))
    lines = refused(read_pairs, write_rows(file, whole, plain))
    assert [line.split(";")[0] for line in lines] == [
        "rows:2:12: chosen is no transcript, and the first of its kind is one",
        "rows:2:32: rejected is no transcript, and the first of its kind is one",
    ]
    lines = refused(read_pairs, write_rows(file, plain, whole))
    assert lines[0].startswith("rows:2:12: chosen reads as a transcript, and the first of its kind does not; ")


def test_a_named_format_takes_strings_as_they_are_and_transcripts_may_be_forced(file: Path):
    text = HH.format("a")
    file.write_text(json.dumps({"chosen": text, "rejected": "b"}))
    assert read_pairs(file, "jsonl").rows == [Pair(None, text, "b")]
    file.write_text(json.dumps({"prompts": [text]}))
    assert read_prompts(file, "json").rows == [Prompt(text)]
    (line,) = refused(read_prompts, write_rows(file, {"prompt": "a"}), "transcripts")
    assert line == (
        "rows:1:12: prompt is no transcript; data.format expects one, which begins with a blank line and Human:, or with Human: and "
        "has more turns; mend it, or set data.format to auto"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\nHuman: \n\nAssistant: a", "is a transcript whose turn 1 of 2, the user's, is empty; "),
        ("\n\nHuman: a\n\nAssistant:", "is a transcript whose turn 2 of 2, the assistant's, is empty; "),
        ("\n\nHuman: a\n\nAssistant: b\n\nHuman: c", "ends with the user's turn; "),
    ],
)
def test_a_transcript_without_a_last_answer_is_refused(file: Path, text: str, expected: str):
    (line,) = refused(read_pairs, write_rows(file, {"chosen": text, "rejected": HH.format("b")}))
    assert line.startswith(f"rows:1:12: chosen {expected}"), line


@pytest.mark.parametrize(
    "text", ["\r\n\r\nHuman: one\r\n\r\nAssistant: {}", " \n\nHuman: one\n\nAssistant: {}", "Human: one\n\nAssistant: {}"]
)
def test_transcripts_are_seen_whatever_their_line_ends_and_what_is_before_them(file: Path, text: str):
    assert read_pair(file, chosen=text.format("two"), rejected=text.format("four")) == Pair(turns(U1), "two", "four")


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        (([U1, A1, A2], [U1, A1, A3]), Pair(turns(U1), turns(A1, A2), turns(A1, A3))),
        (([U1, U2, A1], [U1, A1]), Pair(None, turns(U1, U2, A1), turns(U1, A1))),
        (([U1, A1], [U1, U2, A1]), Pair(None, turns(U1, A1), turns(U1, U2, A1))),
        (([U1, A1, U2, A2], [U1, A1]), Pair(turns(U1), turns(A1, U2, A2), "two")),
    ],
)
def test_the_shared_turns_end_where_both_sides_answer(file: Path, sides: Any, expected: Pair):
    assert read_pair(file, chosen=sides[0], rejected=sides[1]) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("one ", turns(U1)),
        ("three", turns(U1, A1, U2)),
        ([U1], turns(U1)),
        ([U1, A1, U2], turns(U1, A1, U2)),
    ],
)
def test_a_prompt_beside_longer_shared_turns_is_the_prompt(file: Path, prompt: Any, expected: Any):
    pair = read_pair(file, prompt=prompt, chosen=[U1, A1, U2, A2], rejected=[U1, A1, U2, A3])
    assert pair.prompt == expected
    answer = pair.chosen if isinstance(pair.chosen, str) else pair.chosen[-1].content
    assert answer == "four"
    system = read_pair(file, prompt=prompt, chosen=[SYSTEM, U1, A1, U2, A2], rejected=[SYSTEM, U1, A1, U2, A3])
    assert system.prompt == (*turns(SYSTEM), *expected)


def test_a_prompt_with_the_sides_own_system_turn_is_repeated_by_them(file: Path):
    assert read_pair(file, prompt=[SYSTEM, U1], chosen=[SYSTEM, U1, A1], rejected=[SYSTEM, U1, A2]).prompt == turns(SYSTEM, U1)


@pytest.mark.parametrize("sides", [("a", "b"), ([U1, A1], [U1, A2]), ([A1], [A2])])
def test_a_prompt_that_ends_with_an_answer_is_refused_whatever_the_sides_are(file: Path, sides: Any):
    (line,) = refused(read_pairs, write_rows(file, {"prompt": [U1, A1], "chosen": sides[0], "rejected": sides[1]}))
    assert line.startswith("rows:1:12: prompt ends with the assistant's turn; ")


def test_bare_answers_may_follow_transcripts_where_those_are_forced(file: Path):
    write_rows(file, {"prompt": HH.format("")[:-1], "chosen": " two", "rejected": "four"})
    assert read_pairs(file, "transcripts").rows == [Pair(turns(U1), "two", "four")]


def test_a_turn_of_nothing_that_is_drawn_is_refused(file: Path):
    (line,) = refused(read_pairs, write_rows(file, {"chosen": "\n\nHuman: \u200b\n\nAssistant: a", "rejected": HH.format("b")}))
    assert line.startswith("rows:1:12: chosen is a transcript whose turn 1 of 2, the user's, is empty; ")


def test_a_key_of_a_call_that_holds_nothing_is_no_call(file: Path):
    write_rows(file, {"prompt": [{**U1, "tool_calls": False, "function_call": {}, "tool_call_id": ""}]})
    found = read_prompts(file)
    assert (found.rows, found.remarks) == ([Prompt(turns(U1))], ())
    for key in ("function_call", "tool_call_id"):
        assert "is of a tool's call" in refused(read_prompts, write_rows(file, {"prompt": [{**U1, key: "x"}]}))[0]


def test_a_list_of_texts_names_the_item_at_fault(file: Path):
    file.write_text('["a", 3]')
    (line,) = refused(read_prompts, file)
    assert line.startswith("rows:1:7: [1] is a number (3); a text or a list of messages is expected; ")


def test_answers_of_several_turns_may_follow_a_transcript(file: Path):
    later = " two\n\nHuman: three\n\nAssistant: four"
    pair = read_pair(file, prompt=HH.format("")[:-1], chosen=later, rejected="five")
    assert pair == Pair(turns(U1), turns(A1, U2, A2), "five")


def test_sides_that_begin_with_one_turn_spelled_twice_share_it(file: Path):
    spelled = [[{"role": "user", "content": text}, answer] for text, answer in (("caf\u00e9", A1), (" cafe\u0301", A2))]
    assert read_pair(file, chosen=spelled[0], rejected=spelled[1]) == Pair((Message("user", "caf\u00e9"),), "two", "four")


@pytest.mark.parametrize("first", [0, 1])
def test_a_side_is_a_turn_only_where_its_own_prompt_is_a_transcript(file: Path, first: int):
    rows = [{"chosen": " a b ", "rejected": "c"}, {"prompt": HH.format("")[:-1], "chosen": " two", "rejected": "four"}]
    expected = [Pair(None, " a b ", "c"), Pair(turns(U1), "two", "four")]
    order = [first, 1 - first]
    assert read_pairs(write_rows(file, *(rows[place] for place in order))).rows == [expected[place] for place in order]


def test_forced_transcripts_without_a_prompt_must_be_transcripts_on_both_sides(file: Path):
    assert len(refused(read_pairs, write_rows(file, {"chosen": "a", "rejected": "b"}), "transcripts")) == 2


def test_a_prompt_that_is_a_whole_transcript_with_its_answer_is_refused(file: Path):
    (line,) = refused(read_prompts, write_rows(file, {"prompt": HH.format("two")}))
    assert line.startswith("rows:1:12: prompt ends with the assistant's turn; ")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "two", "chosen": [U1, A1, U2, A2], "rejected": [U1, A1, U2, A3]}, "prompt is not what both sides begin with; "),
        ({"prompt": [U2], "chosen": [U1, U2, A1], "rejected": [U1, U2, A2]}, "prompt is not what both sides begin with; "),
        ({"chosen": [SYSTEM], "rejected": [U1, A1]}, "chosen ends with the system's turn; "),
    ],
)
def test_what_no_side_begins_with_is_no_prompt(file: Path, row: dict[str, Any], expected: str):
    (line,) = refused(read_pairs, write_rows(file, row))
    assert line.startswith(f"rows:1:12: {expected}"), line


def test_the_longest_beginning_that_a_prompt_repeats_is_taken(file: Path):
    again = [U1, A1, U1]
    assert read_pair(file, prompt="one", chosen=[*again, A2], rejected=[*again, A3]).prompt == turns(*again)
    assert read_pair(file, prompt=[{"role": "user", "content": "one "}], chosen=[U1, A1], rejected=[U1, A2]).prompt == turns(U1)


def test_sides_that_share_no_turn_have_no_implicit_prompt(file: Path):
    assert read_pairs(write_rows(file, {"chosen": [U1, A1], "rejected": [U2, A1]})).implicit_prompts == 0


def test_a_message_may_have_a_key_called_from(file: Path):
    assert read_prompts(write_rows(file, {"prompt": [{**U1, "from": "x"}]})).rows == [Prompt(turns(U1))]


def test_a_seeds_side_is_named_as_the_row_calls_it(file: Path):
    file.write_text(json.dumps({"pairs": [{"positive": [U1], "negative": [U1, A1]}]}))
    (line,) = refused(read_pairs, file)
    assert line.startswith("rows:1:25: pairs[0].positive ends with the user's turn; ")

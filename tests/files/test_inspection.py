"""What is legal but suspect: what counts, what does not, and how it is named."""

from typing import Any

import pytest

from stages.files import inspection
from stages.files.inspection import Finding, Words
from stages.files.records import Message, Pair, Prompt

NO_PROMPT_FINDINGS = {"duplicate_prompts": [], "damaged_prompts": [], "stringified_prompts": []}


def named(findings: list[Finding]) -> dict[str, list[str]]:
    for finding in findings:
        assert finding.count >= len(finding.first)
    return {finding.key: finding.places(str) for finding in findings}


def of_prompts(*texts: str | tuple[Message, ...]) -> dict[str, list[str]]:
    return named(inspection.inspect_prompts([Prompt(text) for text in texts], lambda: None).findings)


def of_pairs(*rows: tuple[Any, ...]) -> dict[str, list[str]]:
    return named(inspection.inspect_pairs([Pair(*row) for row in rows], lambda: None).findings)


def turns(*texts: str) -> tuple[Message, ...]:
    return tuple(Message(("user", "assistant")[place % 2], text) for place, text in enumerate(texts))


def test_a_clean_set_has_every_count_and_none_above_zero():
    assert of_prompts("a", "b") == NO_PROMPT_FINDINGS
    keys = (
        "equal_sides",
        "pairs_without_prompt",
        "duplicate_pairs",
        "swapped_pairs",
        "refusal_sides",
        "length_imbalance",
        "damaged_pairs",
        "stringified_pairs",
    )
    assert of_pairs(("p", "a b", "c d")) == {key: [] for key in keys}


def test_a_prompt_that_stands_again_is_a_duplicate_whatever_its_unicode_form_and_outer_whitespace():
    assert of_prompts("\u00e9", "b", " e\u0301\n", "\u00e9", "B")["duplicate_prompts"] == ["2", "3"]


def test_a_prompt_is_the_same_as_a_string_and_as_a_message_but_not_under_another_system_turn():
    system = Message("system", "be calm")
    assert of_prompts("a", turns("a"), (system, *turns("a")), turns("a", "b", "c"), turns("a", "b ", "c"))["duplicate_prompts"] == [
        "1",
        "4",
    ]


def test_a_pair_that_stands_again_is_a_duplicate_only_with_the_same_prompt():
    found = of_pairs(("p", "a", "b"), ("q", "a", "b"), (None, "a", "b"), ("p ", "a", " b"), (turns("p"), "a", "b"))
    assert found["duplicate_pairs"] == ["3", "4"]


def test_a_pair_that_prefers_what_an_earlier_one_rejects_is_swapped():
    found = of_pairs(("p", "a", "b"), ("p", "b", "a"), ("q", "b", "a"), (None, "a", "b"), (None, "b", " a"))
    assert found["swapped_pairs"] == ["1", "4"]


def test_sides_that_differ_in_whitespace_alone_are_no_swap_of_themselves():
    assert of_pairs((None, "a", "a "), (None, "a", "a "))["swapped_pairs"] == []


def test_each_side_that_reads_as_a_refusal_is_counted():
    found = of_pairs((None, "I'm sorry, but no.", "As an AI, I do not"), (None, "Sure", "I cannot help with that"))
    assert found["refusal_sides"] == ["0 chosen", "0 rejected", "1 rejected"]
    assert inspection.inspect_pairs([Pair(None, "b", turns("q", "Sorry, no"))], lambda: None).findings[4].places(str) == ["0 rejected"]


def test_text_that_was_damaged_before_is_counted_by_the_text_that_holds_it():
    assert of_prompts("a", "b \ufffd")["damaged_prompts"] == ["1"]
    found = of_pairs(("p", "a", "b"), ("\ufffd", "a\ufffd", "b"), (None, "c", turns("\ufffd", "d")))
    assert found["damaged_pairs"] == ["1 prompt and chosen", "2 rejected"]


@pytest.mark.parametrize("text", ['[{"role": "user", "content": "a"}]', " [ {'content': 'a', 'role': 'user'}]", '[{"from": "human"}]'])
def test_a_list_of_messages_that_was_written_as_a_text_is_counted(text: str):
    assert of_prompts("a", text)["stringified_prompts"] == ["1"]
    assert of_pairs(("p", "a", text))["stringified_pairs"] == ["0 rejected"]


@pytest.mark.parametrize("text", ["[1]", '[{"a": 1}]', "a [{'role': 'user'}]", '{"role": "user"}'])
def test_other_text_in_brackets_is_not(text: str):
    assert of_prompts(text) == NO_PROMPT_FINDINGS


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't do that.",
        "I\u2019m really sorry",
        " i am sorry",
        "Sorry, no",
        "I apologize, but",
        "I cannot assist with this",
        "I can't really help you",
        "I won't provide that",
        "I'm unable to say",
        "I am not able to",
        "As an AI language model, I",
        "As a large language model",
        "Unfortunately, I can not",
        "I must decline",
    ],
)
def test_a_text_that_declines_reads_as_a_refusal(text: str):
    assert inspection.reads_as_refusal(text)


@pytest.mark.parametrize(
    "text", ["I can help", "I cannot wait for spring", "She said: I'm sorry", "As an aircraft lands", "the sorry sea", "I won 5"]
)
def test_a_text_that_answers_does_not_read_as_a_refusal(text: str):
    assert not inspection.reads_as_refusal(text)


@pytest.mark.parametrize(("longer", "found"), [(6, []), (7, ["0"])])
def test_a_side_is_too_long_above_three_times_the_other(longer: int, found: list[str]):
    assert of_pairs((None, "ab", "x" * longer))["length_imbalance"] == found
    assert of_pairs((None, "x" * longer, "ab"))["length_imbalance"] == found
    assert of_pairs((None, "ab", turns("x", "x" * (longer - 1))))["length_imbalance"] == found


def test_pairs_with_equal_sides_are_named_and_not_kept():
    pairs = [Pair("p", "a", "a"), Pair("p", "a", "b"), Pair(None, turns("c"), turns("c")), Pair("p", "a", "a ")]
    inspected = inspection.inspect_pairs(pairs, lambda: None)
    assert inspected.kept == [1, 3]
    assert named(inspected.findings)["equal_sides"] == ["0", "2"]


def test_every_row_advances_the_bar_once():
    calls: list[int] = []
    inspection.inspect_prompts([Prompt("a")] * 3, lambda: calls.append(1))
    inspection.inspect_pairs([Pair(None, "a", "a"), Pair(None, "a", "b")], lambda: calls.append(1))
    assert len(calls) == 5


def test_diversity_is_distinct_words_over_words():
    # the, sea, is, calm, the, land: 5 distinct of 6; both sets together add the, end: 6 of 8
    one, other = Words(), Words()
    one.add("The sea is calm.", None, "the LAND")
    assert inspection.diversity([one]) == 5 / 6
    other.add(turns("The end"))
    assert inspection.diversity([one, other]) == 6 / 8
    assert inspection.diversity([Words()]) == 0.0


def test_the_words_of_a_pair_are_its_prompts_and_its_sides():
    assert inspection.inspect_pairs([Pair("p", "a", "b"), Pair(None, "c", "d")], lambda: None).words.distinct == set("pabcd")


def test_a_finding_names_its_first_rows_and_counts_the_rest():
    finding = Finding("k", "are odd")
    for row in range(3):
        finding.add(row)
    assert finding.line("q:{}".format) == "k: 3 (are odd): q:0, q:1, q:2"
    finding.add(3)
    finding.add(4, "chosen")
    assert finding.line("q:{}".format) == "k: 5 (are odd): q:0, q:1, q:2 and 2 more"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_pairs_that_differ_in_a_system_turn_are_no_duplicates(place: int):
    texts = [turns("p"), turns("q", "a"), turns("q", "b")]
    other = [(Message("system", "be calm"), *text) if number == place else text for number, text in enumerate(texts)]
    assert of_pairs(tuple(texts), tuple(other))["duplicate_pairs"] == []
    assert of_pairs(tuple(texts), tuple(texts))["duplicate_pairs"] == ["1"]


def test_a_prompt_is_no_refusal_and_words_are_compared_in_one_form_of_unicode():
    assert of_pairs(("I'm sorry, what?", "a", "b"))["refusal_sides"] == []
    words = Words()
    words.add("\u00e9", "E\u0301")
    assert words.distinct == {"\u00e9"}


VERBS = "help assist answer provide comply fulfil do discuss create write support engage give".split()
OTHER_WAYS = ("I will not help", "I can not help", "I am so sorry", *(f"Unfortunately, I {verb}" for verb in ("am", "will", "do", "can")))


@pytest.mark.parametrize("text", [*(f"I can't {verb}" for verb in VERBS), *OTHER_WAYS])
def test_every_phrase_of_declining_is_known(text: str):
    assert inspection.reads_as_refusal(text)

"""What is legal but suspect: what counts, what does not, and how it is named."""

from pathlib import Path

import pytest

from stages.core.errors import DataError
from stages.files import inspection
from stages.files.inspection import Finding
from stages.files.records import Pair, PairSet, Prompt, PromptSet


def prompts(*texts: str) -> PromptSet:
    return PromptSet(Path("p"), "jsonl", tuple(map(Prompt, texts)), tuple(f"p:{line}" for line in range(1, len(texts) + 1)))


def pairs(*rows: tuple[str | None, str, str], trait_name: str | None = None) -> PairSet:
    built = tuple(Pair(*row, trait_name) for row in rows)
    return PairSet(Path("q"), "jsonl", built, tuple(f"q:{line}" for line in range(1, len(rows) + 1)))


def places(found: list[Finding]) -> dict[str, tuple[str, ...]]:
    return {finding.key: finding.places for finding in found}


def test_a_clean_set_has_every_count_and_none_above_zero():
    found = places(inspection.prompt_findings(prompts("a", "b")) + inspection.pair_findings(pairs(("p", "a b", "c d"))))
    assert found == {"duplicate_prompts": (), "duplicate_pairs": (), "swapped_pairs": (), "refusal_sides": (), "length_imbalance": ()}


def test_a_prompt_that_stands_again_is_a_duplicate_whatever_its_unicode_form_and_outer_whitespace():
    found = inspection.prompt_findings(prompts("\u00e9", "b", " e\u0301\n", "\u00e9", "B"))
    assert places(found) == {"duplicate_prompts": ("p:3", "p:4")}


def test_a_pair_that_stands_again_is_a_duplicate_only_with_the_same_prompt():
    found = inspection.pair_findings(pairs(("p", "a", "b"), ("q", "a", "b"), (None, "a", "b"), ("p ", "a", " b")))
    assert places(found)["duplicate_pairs"] == ("q:4",)


def test_a_pair_that_prefers_what_an_earlier_one_rejects_is_swapped():
    found = inspection.pair_findings(pairs(("p", "a", "b"), ("p", "b", "a"), ("q", "b", "a"), (None, "a", "b"), (None, "b", " a")))
    assert places(found)["swapped_pairs"] == ("q:2", "q:5")


def test_sides_that_differ_in_whitespace_alone_are_no_swap_of_themselves():
    assert places(inspection.pair_findings(pairs((None, "a", "a "), (None, "a", "a "))))["swapped_pairs"] == ()


def test_each_side_that_reads_as_a_refusal_is_counted():
    found = inspection.pair_findings(pairs((None, "I'm sorry, but no.", "As an AI, I do not"), (None, "Sure", "I cannot help with that")))
    assert places(found)["refusal_sides"] == ("q:1 chosen", "q:1 rejected", "q:2 rejected")


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


@pytest.mark.parametrize(("longer", "found"), [(6, ()), (7, ("q:1",))])
def test_a_side_is_too_long_above_three_times_the_other(longer: int, found: tuple[str, ...]):
    assert places(inspection.pair_findings(pairs((None, "ab", "x" * longer))))["length_imbalance"] == found
    assert places(inspection.pair_findings(pairs((None, "x" * longer, "ab"))))["length_imbalance"] == found


def test_pairs_with_equal_sides_are_dropped_and_named():
    kept, finding = inspection.without_equal_sides(pairs(("p", "a", "a"), ("p", "a", "b"), (None, "c", "c"), ("p", "a", "a ")))
    assert kept == PairSet(Path("q"), "jsonl", (Pair("p", "a", "b"), Pair("p", "a", "a ")), ("q:2", "q:4"))
    assert (finding.key, finding.places) == ("equal_sides", ("q:1", "q:3"))


@pytest.mark.parametrize(("trait_name", "name"), [("calm", "calm"), (None, "q")])
def test_a_set_in_which_all_sides_are_equal_is_refused_by_its_name(trait_name: str | None, name: str):
    with pytest.raises(DataError, match=rf"^q:1: pair set {name} contains no pairs with differing sides, in all 2 "):
        inspection.without_equal_sides(pairs((None, "a", "a"), (None, "b", "b"), trait_name=trait_name))


def test_diversity_is_distinct_words_over_words():
    # the, sea, is, calm, the, land: 5 distinct of 6
    assert inspection.diversity(["The sea is calm.", "the LAND"]) == 5 / 6
    assert inspection.diversity(["...", ""]) == 0.0


def test_the_texts_of_pairs_are_prompts_and_sides():
    assert inspection.pair_texts(pairs(("p", "a", "b"), (None, "c", "d"))) == ["p", "a", "b", "c", "d"]


def test_a_finding_names_its_first_places_and_counts_the_rest():
    assert Finding("k", ("q:1", "q:2", "q:3"), "are odd").line() == "k: 3 are odd: q:1, q:2, q:3"
    assert Finding("k", tuple(f"q:{line}" for line in range(1, 6)), "are odd").line() == "k: 5 are odd: q:1, q:2, q:3 and 2 more"

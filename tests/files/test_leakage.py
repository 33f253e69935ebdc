"""Near duplicates, and held-out rows that training has seen: against every pair of texts compared one by one."""

import random
from array import array

import pytest

from stages.files import leakage, near_duplicates
from stages.files.inspection import Finding
from stages.files.leakage import Divided
from stages.files.near_duplicates import NearIndex, shingles, similarity
from stages.files.records import Message, Pair, Prompt
from stages.files.splits import Split

WORDS = "the child guest friend drops breaks hides finds a red green cup plate phone key toy and is calm harsh fine today".split()


def divided(name: str, rows: list[Prompt] | list[Pair], heldout: list[int]) -> Divided:
    train = [index for index in range(len(rows)) if index not in heldout]
    return Divided(name, rows, f"{name}:{{}}".format, Split(array("q", train), array("q", heldout)))


def rows(finding: Finding) -> list[int]:
    return [place.row for place in finding.first]


def nothing() -> None:
    """Shows no bar."""


def test_shingles_are_five_characters_in_a_row_of_words_alone():
    # "a b, c!" is "a b c": one shingle; "abcdefg" has three
    assert shingles("A b, C!") == {"a b c"}
    assert shingles("abcdefg") == {"abcde", "bcdef", "cdefg"}
    assert shingles("ab") == {"ab"}
    assert shingles("...") == shingles("") == {""}
    assert similarity(shingles("abcdefg"), shingles("abcdefh")) == 2 / 4


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("the child drops the red cup, and the guest is calm today", True),
        ("THE CHILD DROPS THE RED CUP AND THE GUEST IS CALM TODAY!", True),
        ("the child drops the red cups and the guest is calm today", True),
        ("the friend finds a green key and the guest is calm today", False),
    ],
)
def test_case_punctuation_and_a_letter_make_no_other_text(text: str, near: bool):
    index = NearIndex()
    assert index.find("the child drops the red cup and the guest is calm today.", add_as=7) is None
    assert (index.find(text) == 7) == near


def test_what_is_found_is_what_comparing_every_pair_finds_but_for_one_in_twenty_at_most():
    generator = random.Random(0)
    texts: list[str] = []
    for _ in range(400):
        words = generator.choices(WORDS, k=20)
        texts.append(" ".join(words))
        words[generator.randrange(20)] = generator.choice(WORDS)
        texts.append(" ".join(words))
    index, found, expected, kept = NearIndex(), 0, 0, []
    for number, text in enumerate(texts):
        found += index.find(text, add_as=number) is not None
        near = any(similarity(shingles(text), other) >= near_duplicates.THRESHOLD for other in kept)
        expected += near
        if not near:
            kept.append(shingles(text))
    # The seed is fixed, and the signatures are a function of the texts: no chance is left.
    assert 100 < 0.95 * expected <= found <= expected


def test_a_text_that_is_near_is_not_added_itself():
    index = NearIndex()
    one = "the child drops the red cup and the guest is calm today"
    assert [index.find(text, add_as=number) for number, text in enumerate((one, one + "!", one + "?"))] == [None, 0, 0]


def test_near_duplicates_are_the_later_rows_and_no_exact_ones():
    one = "the child drops the red cup and the guest is calm today"
    file = divided("prompts", [Prompt(text) for text in (one, one, f"{one}!", "a friend", f"{one} ")], [2])
    assert rows(leakage.near_duplicates(file, 5, nothing)) == [2]
    assert rows(leakage.near_duplicates(file, 2, nothing)) == []


def test_pairs_are_near_in_all_their_texts_together():
    one = "the child drops the red cup and the guest is calm today"
    pairs = [Pair(one, "yes, it is", "no, it is not"), Pair(f"{one}!", "yes, it is", "no, it is not"), Pair(one, "a key", "breaks")]
    assert rows(leakage.near_duplicates(divided("pairs", pairs, []), 3, nothing)) == [1]


def test_a_held_out_row_leaks_by_its_prompt_and_without_one_by_a_side():
    prompts = divided("prompts", [Prompt("a"), Prompt(" b"), Prompt("c")], [1, 2])
    pairs = divided(
        "pairs", [Pair("b", "x", "y"), Pair(None, "c", "u"), Pair(None, "u ", "v"), Pair("q", "u", "w"), Pair(None, "p", "z")], [2, 3, 4]
    )
    assert rows(leakage.leaked(prompts, [prompts, pairs])) == [1, 2]
    assert rows(leakage.leaked(prompts, [prompts])) == []
    assert rows(leakage.leaked(pairs, [prompts, pairs])) == [2]


def test_a_held_out_row_leaks_nearly_into_either_file():
    one, other = "the child drops the red cup and the guest is calm today", "a friend hides the phone, and nothing is fine any more"
    prompts = divided("prompts", [Prompt("a"), Prompt((Message("user", one),)), Prompt(f"{other}!")], [1])
    pairs = divided("pairs", [Pair(f"{one}?", "x", "y"), Pair(other, "x", "y"), Pair(None, f"{one}.", "z")], [1, 2])
    found = leakage.near_leaked([prompts, pairs], 3, nothing)
    assert [(finding.key, rows(finding)) for finding in found] == [("near_leaked_prompts", [1]), ("near_leaked_pairs", [1, 2])]
    assert [rows(finding) for finding in leakage.near_leaked([prompts, pairs], 1, nothing)] == [[], []]


def test_the_first_rows_are_those_of_the_file_whichever_side_they_are_on():
    file = divided("prompts", [Prompt(str(number)) for number in range(6)], [0, 4])
    assert file.first(3) == [0, 1, 2]
    assert file.first(10) == list(range(6))


def test_every_row_that_is_looked_at_advances_the_bar():
    calls: list[int] = []
    file = divided("prompts", [Prompt(str(number)) for number in range(6)], [0, 4])
    leakage.near_duplicates(file, 4, lambda: calls.append(1))
    leakage.near_leaked([file, file], 4, lambda: calls.append(1))
    assert len(calls) == 4 + 8

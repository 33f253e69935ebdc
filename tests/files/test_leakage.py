"""Near duplicates, and held-out rows that training has seen: against every pair of texts compared one by one."""

import random
from array import array
from typing import Any

import pytest

from stages.files import leakage, near_duplicates
from stages.files.inspection import Finding
from stages.files.leakage import Divided
from stages.files.near_duplicates import COMPARED, WEIGHED, NearIndex, shingles, similarity
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


ONE, OTHER = "the child drops the red cup and the guest is calm today", "a friend hides the phone and nothing is fine any more"


def test_shingles_are_five_characters_in_a_row_whatever_the_case_and_punctuation():
    # "a b, c!" is "a b c": one shingle; "abcdefg" has three
    assert shingles("A b, C!") == {"a b c"}
    assert shingles("abcdefg") == {"abcde", "bcdef", "cdefg"}
    assert shingles("ab") == {"ab"}
    assert shingles("Stra\u00dfe.") == shingles("STRASSE") == {"stras", "trass", "rasse"}
    assert similarity(shingles("abcdefg"), shingles("abcdefh")) == 2 / 4


@pytest.mark.parametrize(
    ("one", "other"),
    [("12+5", "12-5"), ("x < 3", "x > 3"), ("\U0001f44d", "\U0001f44e"), ("!!!", "???"), ("\u0915\u0940", "\u0915\u093f"), ("a_b", "a b")],
)
def test_what_carries_the_meaning_is_no_punctuation(one: str, other: str):
    assert shingles(one).isdisjoint(shingles(other))


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
    index.add(7, f"{ONE}.")
    assert (index.find(text) == 7) == near


@pytest.mark.parametrize(("shared", "near"), [(79, False), (80, True), (81, True)])
def test_texts_are_near_from_four_fifths_of_their_shingles_on(shared: int, near: bool):
    # Letters of their own plane, none twice: n letters have n - 4 shingles. With 100 in all, of which so many are shared, J = shared / 100.
    letters = [chr(0x4E00 + number) for number in range(200)]
    one = "".join(letters[: shared + 4])
    other = one + "".join(letters[100 : 100 + 100 - shared])
    assert similarity(shingles(one), shingles(other)) == shared / 100
    index = NearIndex()
    index.add(0, one)
    # Above the threshold, where the bands find 19 of 20; the signatures are a function of the texts, so no chance is left.
    assert (index.find(other) == 0) == near


def test_what_is_found_is_what_comparing_every_pair_finds_but_for_one_in_twenty_at_most():
    generator = random.Random(0)
    texts: list[str] = []
    for _ in range(400):
        words = generator.choices(WORDS, k=20)
        texts.append(" ".join(words))
        words[generator.randrange(20)] = generator.choice(WORDS)
        texts.append(" ".join(words))
    index, found, expected = NearIndex(), 0, 0
    every = [shingles(text) for text in texts]
    for number, text in enumerate(texts):
        like = index.find(text)
        assert like is None or similarity(every[like], every[number]) >= 0.8
        found += like is not None
        expected += any(similarity(every[number], other) >= 0.8 for other in every[:number])
        index.add(number, text)
    assert 100 < 0.95 * expected <= found <= expected


def test_a_text_is_found_by_what_is_near_it_though_that_was_near_another():
    # one is near the second and not the third, the second is near the third
    texts = [f"{ONE} with {end}" for end in ("a plate", "a plate and a key", "a plate and a key and a toy")]
    assert [similarity(shingles(texts[a]), shingles(texts[b])) >= 0.8 for a, b in ((0, 1), (1, 2), (0, 2))] == [True, True, False]
    rows_of = [Prompt(text) for text in texts]
    assert rows(leakage.near_duplicates(divided("prompts", rows_of, []), 3, nothing)) == [1, 2]
    for train in ([0, 1], [1]):
        file = divided("prompts", rows_of, [row for row in range(3) if row not in train and row != 0])
        assert rows(leakage.near_leaked([file], 3, nothing)[0]) == [2]


@pytest.mark.slow
def test_texts_that_share_a_frame_take_no_time_that_grows_with_the_square(monkeypatch: pytest.MonkeyPatch):
    """Counted, since a busy machine times the same work three times as long: of 4000 texts with a frame each is each one's candidate."""

    class Counted(dict[int, Any]):
        looked_at = 0

        def __getitem__(self, number: int) -> Any:
            self.looked_at += 1
            return super().__getitem__(number)

    compared: list[float] = []
    monkeypatch.setattr(near_duplicates, "similarity", lambda *sets: compared.append(similarity(*sets)) or compared[-1])
    generator = random.Random(0)
    frame = " ".join(generator.choices(WORDS, k=60))
    index, added, count = NearIndex(), Counted(), 4000
    index._added = added
    for number in range(count):
        text = f"{frame} {generator.getrandbits(200):x}"
        index.find(text)
        index.add(number, text)
    assert 0 < len(compared) <= COMPARED * count
    assert count * WEIGHED / 2 < added.looked_at <= count * (WEIGHED + COMPARED)  # with the square it would be count * count / 2


def test_near_duplicates_are_the_later_rows_and_no_exact_ones():
    file = divided("prompts", [Prompt(text) for text in (ONE, ONE, f"{ONE}!", "a friend", f"{ONE} ")], [2])
    assert rows(leakage.near_duplicates(file, 5, nothing)) == [2]
    assert rows(leakage.near_duplicates(file, 2, nothing)) == []


def test_pairs_are_near_in_all_their_texts_together():
    pairs = [Pair(ONE, "yes, it is", "no, it is not"), Pair(f"{ONE}!", "yes, it is", "no, it is not"), Pair(ONE, "a key", "breaks")]
    assert rows(leakage.near_duplicates(divided("pairs", pairs, []), 3, nothing)) == [1]


def test_a_held_out_row_leaks_by_its_prompt_and_without_one_by_a_side():
    prompts = divided("prompts", [Prompt("a"), Prompt(" b"), Prompt("c")], [1, 2])
    pairs = divided(
        "pairs", [Pair("b", "x", "y"), Pair(None, "c", "u"), Pair(None, "u ", "v"), Pair("q", "u", "w"), Pair(None, "p", "z")], [2, 3, 4]
    )
    assert rows(leakage.leaked([prompts, pairs])[0]) == [1, 2]
    assert rows(leakage.leaked([prompts])[0]) == []
    assert rows(leakage.leaked([prompts, pairs])[1]) == [2]


def test_a_held_out_row_leaks_nearly_into_either_file():
    system = Message("system", "a system turn that makes no difference, however long it is and whatever else it says of the rest")
    prompts = divided("prompts", [Prompt("a"), Prompt((system, Message("user", ONE))), Prompt(f"{OTHER}!"), Prompt("no such row")], [1, 3])
    pairs = divided(
        "pairs", [Pair(f"{ONE}?", "x", "y"), Pair(OTHER, "x", "y"), Pair(None, f"{ONE}.", "z"), Pair("neither", "x", "y")], [1, 2, 3]
    )
    found = leakage.near_leaked([prompts, pairs], 4, nothing)
    assert [(finding.key, rows(finding)) for finding in found] == [("near_leaked_prompts", [1]), ("near_leaked_pairs", [1, 2])]
    assert [finding.first[0].what for finding in found] == ["like pairs:0", "like prompts:2"]
    assert [rows(finding) for finding in leakage.near_leaked([prompts, pairs], 1, nothing)] == [[], []]


def test_the_first_rows_are_those_of_the_file_whichever_side_they_are_on():
    file = divided("prompts", [Prompt(str(number)) for number in range(6)], [0, 4])
    assert file.first(3) == [0, 1, 2]
    assert file.first(10) == list(range(6))


def test_every_row_that_is_looked_at_advances_the_bar():
    calls: list[int] = []
    file = divided("prompts", [Prompt(str(number)) for number in range(6)], [0, 4])
    for most in (0, 4, 9):
        calls.clear()
        leakage.compare([file, file], most, lambda: calls.append(1))
        assert len(calls) == leakage.steps([file, file], most) == 4 * min(most, 6)


def test_a_row_without_a_prompt_leaks_by_either_side():
    pairs = [Pair(None, "c", "u"), Pair(None, "a", "u"), Pair(None, "c", "b"), Pair(None, "x", "y")]
    assert rows(leakage.leaked([divided("pairs", pairs, [1, 2, 3])])[0]) == [1, 2]
    near = divided("pairs", [Pair(None, "a key", ONE), Pair(None, "a cup", f"{ONE}!"), Pair(None, f"{ONE}?", "toy")], [1, 2])
    assert rows(leakage.near_leaked([near], 3, nothing)[0]) == [1, 2]


def test_training_rows_beyond_those_looked_at_are_not_compared():
    file = divided("prompts", [Prompt("a"), Prompt(f"{ONE}!"), Prompt(ONE)], [1])
    assert rows(leakage.near_leaked([file], 2, nothing)[0]) == []
    assert rows(leakage.near_leaked([file], 3, nothing)[0]) == [1]


def test_pairs_that_share_prompt_and_one_side_alone_are_not_near():
    pairs = [Pair(ONE, "yes", OTHER), Pair(ONE, "yes", "something else that has nothing to do with any of the others here")]
    assert rows(leakage.near_duplicates(divided("pairs", pairs, []), 2, nothing)) == []


def test_of_several_candidates_the_most_similar_is_found_and_of_equal_ones_the_first():
    index = NearIndex()
    for number, text in enumerate((f"{ONE} with a plate and a toy", f"{ONE} with a plate and", f"{ONE} with a plate")):
        index.add(number, text)
    assert index.find(f"{ONE} with a plate!") == 2
    twice = NearIndex()
    for number in (5, 3):
        twice.add(number, ONE)
    assert twice.find(f"{ONE}!") == 3


def test_of_a_long_text_the_first_fifty_thousand_characters_are_compared():
    long = "".join(chr(0x20000 + number) for number in range(50_000))  # no five in a row twice
    assert shingles(f"{long} and more") == shingles(long) != shingles(long[:-1])

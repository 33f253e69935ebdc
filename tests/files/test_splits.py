"""The split: a function of seed and prompt alone, the same for both files, in the share asked for."""

import hashlib
import random
import unicodedata
from typing import NamedTuple

import pytest

from stages.files import splits
from stages.files.records import Message, Pair, Prompt
from stages.files.splits import flat, identity, is_heldout

PROMPTS = [Prompt(f"prompt {number}") for number in range(400)]


class Rows(NamedTuple):
    train: list[Prompt]
    heldout: list[Prompt]


def split(rows: list[Prompt], fraction: float, seed: int) -> Rows:
    return Rows(*([rows[index] for index in side] for side in splits.split(rows, range(len(rows)), fraction, seed)))


def test_every_row_is_on_one_side_in_the_order_of_the_file():
    train, heldout = split(PROMPTS, 0.3, 0)
    assert sorted([*train, *heldout], key=PROMPTS.index) == PROMPTS
    assert sorted(train, key=PROMPTS.index) == train
    assert sorted(heldout, key=PROMPTS.index) == heldout


def test_the_side_is_the_sha256_of_seed_and_prompt_as_a_fraction():
    number = int(hashlib.sha256(b'[7, "caf\\u00e9"]').hexdigest()[:16], 16) / 2**64
    row = Prompt(" cafe\u0301\n")  # NFC gives one letter for e and its accent
    assert not is_heldout(row, number * (1 - 1e-9), 7)
    assert is_heldout(row, number * (1 + 1e-9), 7)


def test_the_share_held_out_is_near_the_fraction():
    # 400 draws at 0.25: deviation 8.7, so that 100 +- 40 is 4.6 deviations; the seed is fixed, and the outcome with it.
    assert abs(len(split(PROMPTS, 0.25, 0).heldout) - 100) <= 40


def test_a_fraction_of_zero_holds_out_nothing():
    assert split(PROMPTS, 0, 0) == Rows(PROMPTS, [])


def test_a_larger_fraction_only_adds_to_what_is_held_out():
    small, large = split(PROMPTS, 0.1, 0).heldout, split(PROMPTS, 0.4, 0).heldout
    assert small
    assert {row.prompt for row in small} < {row.prompt for row in large}


def test_adding_removing_and_reordering_rows_moves_no_other_row():
    before = {row.prompt for row in split(PROMPTS, 0.3, 0).heldout}
    others = PROMPTS[::2] + [Prompt(f"new {number}") for number in range(100)]
    random.Random(0).shuffle(others)
    after = {row.prompt for row in split(others, 0.3, 0).heldout}
    assert after & {row.prompt for row in PROMPTS} == before & {row.prompt for row in PROMPTS[::2]}


def test_another_seed_holds_out_other_rows():
    assert split(PROMPTS, 0.3, 0).heldout != split(PROMPTS, 0.3, 1).heldout


@pytest.mark.parametrize("prompt", [row.prompt for row in PROMPTS[:20]])
def test_one_prompt_falls_on_one_side_in_every_row_that_has_it(prompt: str):
    spelled = unicodedata.normalize("NFD", f"\u00e9 {prompt}")
    rows = [Prompt(f"\u00e9 {prompt}"), Prompt(spelled), Prompt(f" {spelled}\n"), Pair(spelled, "a", "b"), Pair(spelled, "c", "d", "calm")]
    assert len({is_heldout(row, 0.5, 0) for row in rows}) == 1


def test_a_pair_without_a_prompt_is_held_out_by_its_two_texts_in_either_order():
    assert identity(Pair(None, "b ", " a")) == identity(Pair(None, "a", "b")) == ("a", "b")
    assert identity(Pair(None, "a", "c")) != identity(Pair(None, "a", "b"))


def test_two_texts_are_not_the_prompt_that_they_would_spell_together():
    # Hashed without a boundary between them, ("a", "bc") and ("ab", "c") would fall together for every seed.
    pairs = [Pair(None, "a", "bc"), Pair(None, "ab", "c"), Pair("abc", "x", "y")]
    sides = [tuple(is_heldout(pair, 0.5, seed) for seed in range(40)) for pair in pairs]
    assert len(set(sides)) == 3


def test_only_the_rows_at_the_indexes_given_are_split():
    train, heldout = splits.split(PROMPTS, [3, 5, 7], 0.5, 0)
    assert sorted([*train, *heldout]) == [3, 5, 7]


def test_a_prompt_falls_on_one_side_as_a_string_as_a_message_and_under_any_system_turn():
    user = Message("user", " caf\u00e9")
    spelled = [" cafe\u0301\n", (user,), (Message("system", "be calm"), user)]
    assert {flat(text) for text in spelled} == {"caf\u00e9"}
    assert {identity(row) for text in spelled for row in (Prompt(text), Pair(text, "a", "b"))} == {("caf\u00e9",)}
    assert flat(spelled[2], whole=True) != flat(spelled[1], whole=True) == flat(spelled[0])


def test_conversations_of_other_turns_are_other_prompts():
    one, two = (Message("user", "a"), Message("assistant", "b"), Message("user", "c")), (Message("user", "a"), Message("user", "c"))
    assert len({flat(one), flat(two), flat((one[2],)), flat((one[2]._replace(content="c "),))}) == 3
    assert identity(Pair(None, one, two)) == tuple(sorted((flat(one), flat(two))))


def test_a_prompt_falls_on_one_side_whatever_ends_its_lines():
    assert identity(Prompt("one\r\ntwo")) == identity(Prompt("one\ntwo")) != identity(Prompt("one\n\ntwo"))

"""The reward functions that are shipped: values by hand."""

import pytest

from stages.rewards._numbers import last_number, value_of
from stages.rewards.length import length
from stages.rewards.number_answer import number_answer
from stages.rewards.overlength import overlength
from stages.rewards.pattern import pattern


def test_length_counts_tokens():
    assert length([[5, 6, 7], []]) == [3.0, 0.0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is 30.", "30"),
        ("2*5 = <<2*5=10>>10 gifts.\nA: 26", "26"),
        ("#### 1,234", "1234"),
        ("$1,000,000.50!", "1000000.50"),
        ("x is -5", "-5"),
        ("10-5", "5"),
        ("from 3 to .5", "0.5"),
        ("1,2345", "2345"),
        ("5 of x2", "5"),
        ("3.50", "3.5"),
        ("2.", "2"),
        ("none at all", None),
        ("", None),
        ("٣", None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    found = last_number(text)
    assert found == (None if number is None else value_of(float(number)))


@pytest.mark.parametrize(
    ("column", "number"), [(30, 30), (30.0, 30), (1e20, 10**20), ("a 30", 30), (None, None), (True, None), ([30], None)]
)
def test_the_number_of_a_column(column, number):
    assert value_of(column) == number


def test_an_answer_is_right_where_its_last_number_has_the_rows_value():
    completions = ["it is 30", "it is 30.0 kg", "30 or 31", "no idea"]
    assert number_answer(completions, [{"answer": "30"}] * 4) == [1.0, 1.0, 0.0, 0.0]
    assert number_answer(["1,000"], [{"answer": "so it is #### 1000"}]) == [1.0]


def test_it_abstains_where_the_row_has_no_number():
    assert number_answer(["30"] * 4, [{}, {"answer": None}, {"answer": "none"}, {"answer": 30}]) == [None, None, None, 1.0]
    assert number_answer(["30"], [{"answer": "7", "result": 30}], column="result") == [1.0]


def test_with_a_marker_only_what_stands_behind_the_last_one_counts():
    row = [{"answer": "5"}]
    assert number_answer(["A: 4 A: 5"], row, after="A:") == [1.0]
    assert number_answer(["5"], row, after="A:") == [0.0]
    assert number_answer(["A: 5 of 6"], row, after="A:") == [0.0]


def test_a_pattern_is_found_anywhere_or_must_be_all():
    completions = ["so\nA: 5", "A: five", ""]
    assert pattern(completions, r"A: \d+") == [1.0, 0.0, 0.0]
    assert pattern(completions, r".*A: \d+", whole=True) == [1.0, 0.0, 0.0]
    assert pattern(completions, r"A: \d+", whole=True) == [0.0, 0.0, 0.0]


def test_what_is_no_expression_is_refused():
    with pytest.raises(ValueError, match=r"'\(' is no regular expression"):
        pattern([], "(")


def test_the_penalty_rises_evenly_from_the_margin_to_the_cap():
    # cap 10, margin 4: up to 6 tokens 0, then a quarter each; the end token counts
    lengths = [0, 5, 6, 7, 9, 10, 12]
    expected = [0.0, 0.0, 0.0, -0.25, -0.75, -1.0, -1.0]
    assert overlength([[1] * size for size in lengths], [False] * 7, cap=10, margin=4) == expected
    assert overlength([[1] * size for size in lengths], [True] * 7, cap=11, margin=4) == [0.0, 0.0, 0.0, -0.25, -0.75, -1.0, -1.0]


@pytest.mark.parametrize(("cap", "margin"), [(10, 0), (10, 11), (0, 1), (-3, -4)])
def test_a_margin_that_is_none_is_refused(cap, margin):
    with pytest.raises(ValueError, match="margin must be from 1 to cap"):
        overlength([], [], cap, margin)

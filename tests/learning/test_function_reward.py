"""Reward functions of one's own: what they are given, what they may give, and what is refused before weights are loaded."""

import math
from pathlib import Path

import pytest

from stages.core import layout
from stages.core.errors import RewardFunctionError
from stages.files.records import Message, Prompt
from stages.learning.function_reward import FunctionPart, load
from stages.learning.scores import Drawn
from stages.model import toy
from stages.model.rendering import Renderer
from tests.learning.runs import base_record, cut, ended, ids

COMPLETIONS = [ended(*ids("please rest .")), ended(), cut(*ids("just leave"))]
MESSAGES = (Message("system", "be calm"), Message("user", "the guest"))
ROWS = [Prompt("the child", {"answer": "5", "hard": True}), Prompt(MESSAGES)]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    layout.REWARDS.mkdir(parents=True)


def write(text: str) -> None:
    (layout.REWARDS / "mine.py").write_text(text)


def rewards(text: str, place: int = 0, **arguments):
    """What the function of this source gives for the completions of a row."""
    write(text)
    part = FunctionPart(load("mine", arguments), ROWS, Renderer(toy.tokenizer(), base_record()))
    (found,) = part.rewards([Drawn(place, [1, 2], COMPLETIONS)])
    return [value if rated else None for value, rated in zip(found.values.tolist(), found.rated.tolist(), strict=True)]


def refusal(text: str, **arguments) -> list[str]:
    with pytest.raises(RewardFunctionError) as refused:
        rewards(text, **arguments)
    return list(refused.value.problems)


KEEPS = """
seen = []
def mine(prompts, completions, token_ids, ended, columns, **arguments):
    seen.append((prompts, completions, token_ids, ended, columns, arguments))
    return [0.5 if one else None for one in ended]
def last(completions): return seen
"""


def test_a_function_is_given_an_entry_for_each_completion_and_may_abstain():
    assert rewards(KEEPS, cap=3) == [0.5, 0.5, None]
    function = load("mine", {"cap": 3})
    part = FunctionPart(function, ROWS, Renderer(toy.tokenizer(), base_record()))
    part.rewards([Drawn(0, [1, 2], COMPLETIONS), Drawn(1, [1, 2], COMPLETIONS[:1])])
    trial, first, second = function.call.__globals__["seen"]
    assert trial == ([], [], [], [], [], {"cap": 3})
    assert first == (
        ["the child"] * 3,
        ["please rest.", "", "just leave"],
        [ids("please rest ."), [], ids("just leave")],
        [True, True, False],
        [{"answer": "5", "hard": True}] * 3,
        {"cap": 3},
    )
    assert second[0] == [[{"role": "system", "content": "be calm"}, {"role": "user", "content": "the guest"}]]
    assert second[4] == [{}]


def test_it_is_given_what_it_declares_alone():
    assert rewards("def mine(token_ids, scale=2):\n    return [scale * len(one) for one in token_ids]\n") == [6.0, 0.0, 4.0]
    assert rewards("def mine(*, ended, scale):\n    return [scale * one for one in ended]\n", scale=4) == [4.0, 4.0, 0.0]


def test_numbers_of_numpy_and_whole_ones_and_truths_are_rewards():
    text = "import numpy\ndef mine(ended):\n    return tuple([numpy.float32(0.5), 1, True][: len(ended)])\n"
    assert rewards(text) == [0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("def other(): pass\n", {}, "it has no function mine at its top level; a reward function is named as its file is"),
        ("async def mine(ended): pass\n", {}, "it has no function mine at its top level"),
        ("def mine(:\n", {}, "1: this is not Python ("),
        ("def mine(ended, /): pass\n", {}, "1: mine is called with named arguments alone"),
        ("def mine(ended, cap): pass\n", {}, "mine needs the argument cap; state it under arguments"),
        ("def mine(ended, cap): pass\n", {"cup": 3}, "mine takes no argument cup; it takes cap"),
        ("def mine(ended): pass\n", {"cup": 3}, "mine takes no argument cup; it takes none"),
        ("def mine(ended): pass\n", {"ended": 3}, "the argument ended is given by the pipeline; leave it out of arguments"),
        (
            "import nothing_such\ndef mine(ended): pass\n",
            {},
            "1: it cannot be imported: ModuleNotFoundError: No module named 'nothing_such'",
        ),
        ("def mine(ended):\n    return 1 / 0\n", {}, "2: mine failed: ZeroDivisionError: division by zero"),
        ("def mine(ended):\n    raise ValueError('cap is bad')\n", {}, "2: mine failed: ValueError: cap is bad"),
        ("def mine(ended):\n    return None\n", {}, "mine gave a NoneType, expected a list of 0 rewards, one for each completion"),
        ("def mine(ended):\n    return [1.0]\n", {}, "mine gave 1 of them, expected a list of 0 rewards, one for each completion"),
        ("def mine(ended):\n    return [1.0 for one in ended if one]\n", {}, "mine gave 2 of them, expected a list of 3 rewards"),
        ("def mine(ended):\n    return ['a' for one in ended]\n", {}, "mine gave 'a' for completion 0, expected a finite number, or None"),
        ("def mine(ended):\n    return [float('nan') for one in ended]\n", {}, "mine gave nan for completion 0, expected a finite number"),
        ("def mine(ended):\n    return [10**400 for one in ended]\n", {}, "for completion 0, expected a finite number"),
    ],
)
def test_what_is_no_reward_function_is_one_line_with_its_file(text, arguments, expected):
    first = refusal(text, **arguments)[0]
    assert first.startswith("stages/rewards/mine.py:")
    assert expected in first


def test_the_line_is_that_of_the_users_own_file():
    inner = "    def inner(text):\n        return json.loads(text)\n"
    (line,) = refusal(f"import json\ndef mine(completions):\n{inner}    return [inner(one) for one in completions]\n")
    assert line.startswith("stages/rewards/mine.py:4: mine failed: JSONDecodeError: ")


def test_a_function_may_import_what_stands_beside_the_shipped_ones():
    text = "from stages.rewards.length import length\ndef mine(token_ids):\n    return [-one for one in length(token_ids)]\n"
    assert rewards(text) == [-3.0, -0.0, -2.0]


def test_an_interrupt_is_not_taken_for_a_failure():
    with pytest.raises(KeyboardInterrupt):
        rewards("def mine(ended):\n    raise KeyboardInterrupt\n")


def test_infinite_is_no_reward():
    assert "inf" in refusal(f"def mine(ended):\n    return [{math.inf!r} for one in ended]\n".replace("inf", "float('inf')"))[0]

"""The text of a comparison: complete, foldable, and with nothing in it that a user's text could make the terminal do."""

import dataclasses
import re
from typing import Any

import pytest

from stages.files.artifacts import FACTOR
from stages.versions import comparison_text, completions
from stages.versions.comparison import Comparison
from stages.versions.comparison_text import Page
from stages.versions.rows import Row, RowChange
from tests.versions.pages import HTML, MARKUP, comparison, interval, same
from tests.versions.projects import MODULES, PROMPTS, samples


def squeezed(text: str) -> str:
    """Without what folding puts in."""
    return re.sub(r"\s+", "", text)


def test_it_names_the_settings_the_figures_every_tensor_and_every_prompt():
    text = comparison_text.render(comparison())
    assert re.search(r"grpo\.beta +0\.04 +0\.1\n", text)
    assert re.search(r"runtime\.threads +1 +2 +changes numbers by rounding alone\n", text)
    assert re.search(r"evaluate\.reward_gain +0\.5 \[0\.25, 0\.75\] +1 +\+0\.5\n", text)
    for module in MODULES:
        assert len(re.findall(rf"^{re.escape(module)} ", text, re.MULTILINE)) == 1
        for side in "AB":
            name = f"base_model.model.{module}.lora_{side}.weight"
            assert FACTOR.fullmatch(name)
            assert name in text
    assert "policy: 16 of 16 tensors differ" in text
    assert "reward: identical (17 tensors, sha256 cccccccccccc)" in text
    for prompt in (*PROMPTS, MARKUP, HTML, "user: hello"):
        assert squeezed(prompt) in squeezed(text)
    assert "held-out completions were not drawn alike" in text


def test_markup_in_a_text_is_text():
    text = squeezed(comparison_text.render(comparison(), Page(False, 400)))
    assert squeezed(f"{MARKUP} writes 0 0") in text
    assert squeezed(HTML) in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_control_character_of_a_text_does_not_reach_the_terminal(terminal: bool):
    text = comparison_text.render(comparison(), Page(terminal, 200))
    assert "red \\x1b[31mtext\\x07 and\\x9b2J" in text
    assert not set("\x07\x9b\x00") & set(text)
    assert ("\x1b[31m" in text, "\x1b[1m" in text) == (False, terminal)  # our own headings are bold


def test_without_a_terminal_there_are_no_colours_and_lines_end_at_160_columns():
    text = comparison_text.render(comparison())
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 160
    assert not re.search(" $", text, re.MULTILINE)


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_names_are_folded_and_never_cropped(width: int):
    """Cells of one column, one under another, are the name again."""
    text = comparison_text.render(comparison(heldout=None, rows=[]), Page(False, width))
    assert "…" not in text
    table = text[re.search("^tensor ", text, re.MULTILINE).start() :]
    first = "".join(re.match(r"\S*", line)[0] for line in table.splitlines()[1:])
    for module in MODULES:
        assert f"base_model.model.{module}.lora_A.weight" in first


def test_prompts_are_sorted_by_how_much_the_rewards_differ():
    text = comparison_text.render(comparison())
    held = text[text.index("held-out completions:") :]
    places = [held.index(prompt) for prompt in reversed(PROMPTS)]
    assert places == sorted(places)


def test_beyond_twenty_rows_and_fifty_prompts_there_is_a_count():
    many = [Row("train", {"prompt": f"row {number}"}) for number in range(23)]
    prompts = [f"asked {number:03}" for number in range(53)]
    whole = comparison(
        rows=[RowChange("prompts", many, [], [])], heldout=completions.compare(samples(prompts), samples(prompts, gain=1.0), "x", interval)
    )
    text = comparison_text.render(whole)
    assert "prompts: 23 added, 0 removed, 0 moved" in text
    assert ("row 19" in text, "row 20" in text) == (True, False)
    assert "... and 3 more added; --json has all" in text
    assert "... and 3 more prompts; --json and --html have all, and every draw" in text
    assert len(re.findall(r"^asked \d{3}", text, re.MULTILINE)) == 50
    assert "asked 000" not in text  # its rewards are equal


def test_a_long_text_ends_in_a_count():
    text = comparison_text.render(comparison(rows=[RowChange("prompts", [Row("train", {"prompt": "x" * 500})], [], [])]))
    assert "... and 100 more characters" in text
    assert squeezed(text).count("x" * 400) == 1


def test_prompts_of_one_side_and_what_was_unavailable_are_said():
    heldout = completions.compare(samples(["one", "two"]), samples(["two", "three"]), "x", interval)
    text = comparison_text.render(comparison(heldout=heldout, unavailable=["artifacts/reward of v1: neither in the cache nor in a remote"]))
    assert "! artifacts/reward of v1: neither in the cache nor in a remote" in text
    assert re.search(r"1 prompt in A alone:\n(.*\n)*one\n", text)
    assert re.search(r"1 prompt in B alone:\n(.*\n)*three\n?", text)


def test_equal_versions_are_said_to_be_equal():
    assert "nothing differs" in comparison_text.render(same())


OTHER: list[dict[str, Any]] = [
    {"unavailable": ["x"]},
    {"settings": comparison().settings},
    {"base": comparison().settings},
    {"metrics": comparison().metrics},
    {"artifacts": comparison().artifacts},
    {"rows": comparison().rows},
    {"heldout": comparison().heldout},
]


@pytest.mark.parametrize("change", OTHER, ids=lambda change: next(iter(change)))
def test_a_difference_of_any_kind_is_one(change: dict[str, Any]):
    assert not dataclasses.replace(same(), **change).is_empty()
    assert "nothing differs" not in comparison_text.render(dataclasses.replace(same(), **change))


def test_parts_that_could_not_be_compared_are_left_out():
    bare: Comparison = comparison(settings=None, base=None, metrics=[], artifacts=[], rows=[], heldout=None, unavailable=["x"])
    assert bare.is_void()
    text = comparison_text.render(bare)
    assert "settings" not in text
    assert "held-out completions:" not in text

"""Held-out completions side by side, and the paired figure by hand."""

import json
from typing import Any

import numpy as np
import pytest

from stages.core.errors import DataError
from stages.versions import completions
from tests.versions.projects import PROMPTS, samples


def mean(values: Any) -> tuple[float, float | None, float | None]:
    return float(values.mean()), float(values.min()), float(values.max())


def compare(a: list[dict], b: list[dict], average: Any = mean) -> completions.Heldout:
    return completions.compare(a, b, "a reward model", average)


def test_the_paired_figure_is_the_mean_over_prompts_of_the_mean_over_draws():
    found = compare(samples(), samples(gain=0.5))
    # gain * place: 0, 0.5, 1, 1.5
    assert [(one.prompt, one.difference) for one in found.prompts] == [
        (PROMPTS[3], pytest.approx(1.5)),
        (PROMPTS[2], pytest.approx(1.0)),
        (PROMPTS[1], pytest.approx(0.5)),
        (PROMPTS[0], 0.0),
    ]
    assert found.paired is not None
    assert found.paired.difference == pytest.approx(0.75)
    assert (found.paired.difference_low, found.paired.difference_high) == (0.0, pytest.approx(1.5))
    # draws 0 and 1 of places 0..3: mean place 1.5, mean draw / 10 is 0.05
    assert found.paired.reward_a == pytest.approx(1.55)
    assert found.paired.reward_b == pytest.approx(2.3)
    # a tie in one prompt of four
    assert found.paired.win_rate == pytest.approx(0.875)


def test_prompts_of_unequal_numbers_of_draws_count_alike():
    a, b = samples(PROMPTS[:2], draws=3), samples(PROMPTS[:2], draws=3, gain=1.0)
    found = compare([row for row in a if row["prompt"] != PROMPTS[1] or row["draw"] == 0], b)
    assert found.paired is not None
    assert found.paired.difference == pytest.approx(0.5)
    assert found.draws_apart == 2
    assert {one.prompt: len(one.draws) for one in found.prompts} == {PROMPTS[0]: 3, PROMPTS[1]: 1}


def test_every_draw_has_both_completions_and_the_bases():
    found = compare(samples(PROMPTS[:1]), samples(PROMPTS[:1], policy="second"))
    (prompt,) = found.prompts
    assert [(one.draw, one.policy_a, one.policy_b, one.base_a, one.base_b) for one in prompt.draws] == [
        (draw, f"first writes 0 {draw}", f"second writes 0 {draw}", f"base writes 0 {draw}", f"base writes 0 {draw}") for draw in range(2)
    ]


def test_rewards_of_two_reward_models_are_shown_and_not_compared():
    found = compare(samples(), samples(gain=0.5), average=None)
    assert found.paired is None
    assert [(one.prompt, one.difference) for one in found.prompts] == [(prompt, None) for prompt in PROMPTS]
    assert found.prompts[3].reward_b == pytest.approx(4.55)


def test_prompts_of_one_side_are_named():
    found = compare(samples(PROMPTS[:3]), samples([*PROMPTS[1:], [{"role": "user", "content": "hello"}]]))
    assert found.only_a == [PROMPTS[0]]
    assert found.only_b == [PROMPTS[3], [{"role": "user", "content": "hello"}]]
    assert len(found.prompts) == 2


def test_a_prompt_that_stands_twice_is_matched_in_order():
    found = compare(samples(["same", "same"]), samples(["same", "same", "same"], policy="second"))
    assert sorted(one.draws[0].policy_b for one in found.prompts) == ["second writes 0 0", "second writes 1 0"]
    assert sorted(one.draws[0].policy_a for one in found.prompts) == ["first writes 0 0", "first writes 1 0"]
    assert found.only_b == ["same"]


def test_nothing_in_common_has_no_figure():
    found = compare(samples(PROMPTS[:1]), samples(PROMPTS[1:]))
    assert (found.paired, found.prompts) == (None, [])


def test_another_column_can_be_compared_and_rows_may_lack_the_base():
    rows = [{"prompt": "p", "draw": 0, "policy": "x", "judge": float(value)} for value in range(2)]
    found = completions.compare(rows[:1], rows[1:], "a judge", mean, reward="judge")
    assert found.paired is not None
    assert found.paired.difference == 1.0
    assert found.prompts[0].draws[0].base_a is None


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{",
        '{"prompt": "x"}',
        json.dumps({**samples()[0], "policy_reward": "1"}),
        json.dumps({**samples()[0], "policy_reward": float("nan")}),
        json.dumps({**samples()[0], "prompt": 1}),
        json.dumps(samples()[0]).replace("0.0", "1e999"),
    ],
)
def test_a_line_that_evaluate_does_not_write_is_refused(tmp_path, line: str):
    path = tmp_path / "samples.jsonl"
    path.write_text(f"{json.dumps(samples()[0])}\n{line}\n")
    with pytest.raises(DataError, match=r"samples\.jsonl:2: not a row as evaluate writes it; dvc repro evaluate writes it anew"):
        completions.read(path)


def test_rows_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in samples()))
    assert completions.read(path) == samples()


def test_a_win_is_a_higher_reward_and_a_tie_is_half_of_one():
    rows = samples(["p"], draws=4)
    higher = [{**row, "policy_reward": row["policy_reward"] + step} for row, step in zip(rows, (1, 1, 0, -1), strict=True)]
    found = compare(rows, higher)
    assert found.paired is not None
    assert found.paired.win_rate == pytest.approx(np.mean([1, 1, 0.5, 0]))


def test_a_prompt_of_which_no_draw_is_shared_is_no_ones_alone():
    rows = samples(["p"], draws=4)
    found = compare(rows[:2], rows[2:])
    assert (found.prompts, found.only_a, found.only_b, found.draws_apart) == ([], [], [], 4)


def test_the_same_text_scored_in_another_batch_is_no_gain_and_another_text_with_the_same_score_is_none_either():
    rows = samples(["p"], draws=3)
    texts = ("same", "same", "other")
    a = [{**row, "policy": "same", "policy_reward": 1.0} for row in rows]
    b = [
        {**row, "policy": text, "policy_reward": reward}
        for row, text, reward in zip(rows, texts, (1.0 + 2e-6, 1.5, 1.0 + 2e-6), strict=True)
    ]
    found = compare(a, b)
    assert found.paired is not None
    # rounding; the same text, but cut in one and ended in the other; a text of its own, however little it gains
    assert found.paired.win_rate == pytest.approx((0.5 + 1 + 1) / 3)
    assert found.prompts[0].difference == pytest.approx((0 + 0.5 + 2e-6) / 3)

"""Charts: what is drawn of a curve, and how pairs are binned."""

import math
import re

import pytest

from stages.pages import charts
from stages.pages.charts import POINTS, calibrated, calibration, curve, margins
from tests.pages import measured


def points(svg: str) -> list[int]:
    """How many points each line and each bar has."""
    return [path.count("L") + 1 for path in re.findall(r'd="(M[^"]*L[^"]*)" stroke=', svg)]


def test_a_curve_has_a_point_for_each_step_and_says_what_it_is():
    found = curve(measured.curve(9, "loss"), "loss", "loss")
    assert found.title == "loss"
    assert 9 in points(found.svg)
    assert not re.search(r"(?:href|src)=", found.svg)


def test_of_a_long_curve_every_so_many_th_step_is_drawn_and_the_last():
    found = curve(measured.curve(1001, "loss"), "loss", "loss")
    assert found.title == "loss, every 6th step"
    assert max(points(found.svg)) == math.ceil(1001 / 6) + 1 <= POINTS + 1
    short = curve(measured.curve(POINTS, "loss"), "loss", "loss")
    assert max(points(short.svg)) == POINTS


def test_a_column_without_a_value_has_no_curve_and_one_with_gaps_has():
    rows = [{"step": 1.0, "part_a": None}, {"step": 2.0, "part_a": None}]
    assert curve(rows, "part_a", "a") is None
    assert curve(rows, "clipped", "clipped") is None
    assert curve([*rows, {"step": 3.0, "part_a": 1.0}, {"step": 4.0, "part_a": 2.0}], "part_a", "a") is not None


def test_the_spread_is_a_band():
    found = curve(measured.curve(9, "mean_reward", "reward_spread"), "mean_reward", "mean reward", "reward_spread")
    assert found.title == "mean reward, with the spread within groups"
    assert "mark-area" in found.svg


def test_one_step_is_a_point():
    assert "mark-symbol" in curve(measured.curve(1, "loss"), "loss", "loss").svg


def test_the_histogram_counts_the_pairs():
    found = margins([0.5, 0.6, -2.0, 0.0])
    assert "4 held-out pairs" in found.title
    assert found.svg.count("mark-rect") == 1


def test_confidence_is_that_of_the_margin_and_a_tie_is_half_right():
    # sorted by size: 0, 1, -1, 3; two bins of two: half right and right, wrong and right
    found = calibrated([1.0, 0.0, 3.0, -1.0], bins=2)
    half = 1 / (1 + math.exp(-1))
    assert found[0] == pytest.approx(((0.5 + half) / 2, 0.75, 2))
    assert found[1] == pytest.approx(((half + 1 / (1 + math.exp(-3))) / 2, 0.5, 2))
    assert calibrated([2.0]) == [pytest.approx((1 / (1 + math.exp(-2)), 1.0, 1))]
    assert sum(one.pairs for one in calibrated([0.1 * number for number in range(13)])) == 13
    assert "mark-symbol" in calibration(found).svg


def test_a_huge_margin_is_sure():
    assert calibrated([-800.0]) == [(1.0, 0.0, 1)]


def test_the_same_numbers_give_the_same_bytes():
    one, other = (margins([0.5, 0.6, -2.0, 0.0]).svg for _ in range(2))
    assert one == other
    assert charts.WIDTH > charts.HEIGHT

"""Figures that differ, with their intervals folded in."""

from pathlib import Path

import pytest

from stages.core.errors import DataError
from stages.versions import figures
from stages.versions.figures import Figure, Measured
from stages.versions.revision import Revision
from stages.versions.snapshot import MissingError, Snapshot
from tests.versions.projects import evaluated


def differing(a: dict, b: dict, stage: str = "evaluate", settings: dict | None = None) -> list[Figure]:
    return figures.differing(stage, a, b, settings or {})


def test_the_four_figures_are_there_even_where_nothing_differs():
    found = differing(evaluated(), evaluated())
    assert [one.key for one in found] == ["accuracy", "reward_gain", "win_rate", "mean_kl"]
    assert found[1] == Figure("evaluate", "reward_gain", Measured(0.5, 0.25, 0.75), Measured(0.5, 0.25, 0.75), 0.0)


def test_a_figure_has_its_interval_and_b_minus_a():
    found = {one.key: one for one in differing(evaluated(), evaluated(reward_gain=0.75, reward_gain_high=1.0, policy_empty=0.5))}
    assert found["reward_gain"] == Figure("evaluate", "reward_gain", Measured(0.5, 0.25, 0.75), Measured(0.75, 0.25, 1.0), 0.25)
    assert found["policy_empty"] == Figure("evaluate", "policy_empty", Measured(None, None, None), Measured(0.5, None, None), None)


def test_a_change_of_the_interval_alone_is_a_change():
    assert [one.key for one in differing({"x": 1, "x_low": 0.5}, {"x": 1, "x_low": 0.25}, "grpo")] == ["x"]


def test_a_key_that_only_looks_like_an_end_is_a_figure_of_its_own():
    assert [one.key for one in differing({"price_low": 1}, {"price_low": 2}, "grpo")] == ["price_low"]


def test_settings_histories_and_what_is_equal_are_left_out():
    a = {"beta": 0.04, "steps": 4, "mean_kl": 0.1, "history": [1], "warning": None}
    b = {"beta": 0.1, "steps": 4, "mean_kl": 0.2, "history": [2], "warning": "nothing ended"}
    found = differing(a, b, "grpo", {"grpo.beta": 0.1})
    assert [(one.key, one.difference) for one in found] == [("mean_kl", pytest.approx(0.1)), ("warning", None)]
    assert [one.key for one in differing({"seed": 1}, {"seed": 2}, "validate", {"data.seed": 2})] == []


def test_what_a_hand_wrote_in_place_of_a_number_has_no_difference():
    found = differing({"x": 10**400, "x_low": "far", "y": True}, {"x": 1, "y": 2}, "grpo")
    assert [(one.key, one.a.low, one.difference) for one in found] == [("x", None, None), ("y", None, None)]


def test_a_report_is_read_strictly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    workspace = Snapshot(Revision("workspace", None), Path(), None)
    with pytest.raises(MissingError, match=r"reports/grpo.json of workspace: there is none; dvc repro grpo writes it"):
        figures.read(workspace, "grpo")
    Path("reports").mkdir()
    for content in (b"[]", b"{", b'{"x": NaN}', b'{"x": 1e999}', b"\xff"):
        Path("reports/grpo.json").write_bytes(content)
        with pytest.raises(DataError, match=r"reports/grpo.json: not a report: .*dvc repro writes it anew"):
            figures.read(workspace, "grpo")
    Path("reports/grpo.json").write_bytes(b'{"x": 1}')
    assert figures.read(workspace, "grpo") == {"x": 1}


def test_figures_of_an_object_are_compared_by_dotted_keys_with_their_intervals():
    a, b = ({"training_parts": {"answer": {"reward_gain": gain, "reward_gain_low": 0.0, "reward_gain_high": 1.0}}} for gain in (0.25, 0.5))
    (found,) = [one for one in differing(a, b) if one.key.startswith("training")]
    assert found == Figure("evaluate", "training_parts.answer.reward_gain", Measured(0.25, 0.0, 1.0), Measured(0.5, 0.0, 1.0), 0.25)

import json
from pathlib import Path

import pytest

from stages.core.errors import SettingsError
from stages.sweeps import results
from stages.sweeps.results import FAILED, RAN, REUSED, Outcome, Ranking

SWEEP = "a-sweep"
REPORT = {"samples": 4, "reward_gain": 1.5, "reward_gain_low": 1.0, "reward_gain_high": 2.0, "accuracy": None, "training_reward": "length"}


def outcome(number: int, figure: float | None, status: str = RAN, **more) -> Outcome:
    texts = [f"grpo.beta=0.{number}", "grpo.rank=4"]
    return Outcome(SWEEP, number, texts, status, f"sweep-{number}", figure, seconds=1.25, **more)


@pytest.mark.parametrize(("metric", "stage"), [("reward_gain", "evaluate"), ("grpo.mean_reward", "grpo")])
def test_a_metric_is_of_evaluates_report_unless_it_names_another(metric: str, stage: str):
    assert results.report_of(metric) == stage


def test_a_figure_comes_with_its_interval_and_may_be_null():
    assert results.figure(REPORT, "reward_gain") == (1.5, 1.0, 2.0)
    assert results.figure(REPORT, "evaluate.accuracy") == (None, None, None)


@pytest.mark.parametrize("name", ["nope", "training_reward"])
def test_what_is_no_figure_of_the_report_is_refused_with_those_that_are(name: str):
    with pytest.raises(SettingsError) as caught:
        results.figure(REPORT, name)
    listed = "samples, reward_gain, reward_gain_low, reward_gain_high, accuracy"
    assert caught.value.lines() == [f"sweep.metric: reports/evaluate.json has no figure {name} here; it has {listed}"]


@pytest.mark.parametrize(("direction", "order"), [("maximize", [1, 0, 2, 3]), ("minimize", [0, 1, 2, 3])])
def test_best_first_then_those_without_a_figure_then_those_that_failed(direction: str, order: list[int]):
    outcomes = [Outcome(SWEEP, 3, [], FAILED, problem="x"), outcome(2, None), outcome(0, -1.0), outcome(1, 2.0)]
    assert [one.number for one in results.ranked(outcomes, direction)] == order


def test_a_sweep_ends_with_a_table_a_summary_and_the_problems_of_what_failed(tmp_path: Path):
    kept = [
        outcome(0, 0.5, low=0.25, high=0.75)._replace(overrides=["grpo.beta=0.012345678901", "grpo.rank=4"]),
        outcome(1, 0.75, REUSED, low=0.5, high=1.0),
        Outcome(SWEEP, 2, ["grpo.rank=4"], FAILED, problem="job 2: it broke"),
    ]
    for one in kept:
        results.write(tmp_path / "any" / str(one.number), one)
    results.write(tmp_path / "7", Outcome("another", 7, [], FAILED, problem="job 7 of a sweep before in the same folder"))
    conclusion = results.conclude(Ranking(tmp_path, "reward_gain", "maximize"), SWEEP, "a" * 40)
    assert [line.split() for line in conclusion.table.splitlines()] == [
        ["all", "jobs:", "grpo.rank=4"],
        ["job", "grpo.beta", "reward_gain", "95%", "interval", "experiment", "time"],
        ["1", "0.1", "0.75", "[0.5,", "1]", "sweep-1", "ran", "before"],
        ["0", "0.0123457", "0.5", "[0.25,", "0.75]", "sweep-0", "1.2", "s"],
        ["2", "failed"],
        "the best one's interval overlaps with those of: 0; stages.compare holds two side by side, paired".split(),
        "next: python -m stages.compare aaaaaaa sweep-1, or dvc exp apply sweep-1".split(),
    ]
    assert conclusion.problems == ["job 2: it broke"]
    summary = json.loads((tmp_path / "sweep.json").read_bytes())
    assert (summary["metric"], summary["direction"], [job["number"] for job in summary["jobs"]]) == ("reward_gain", "maximize", [1, 0, 2])


def test_values_with_markup_are_printed_as_they_are(tmp_path: Path):
    results.write(tmp_path / "0", Outcome(SWEEP, 0, ["grpo.targets=[red]"], RAN, "sweep-0", 1.0))
    results.write(tmp_path / "1", Outcome(SWEEP, 1, ["grpo.targets=[/red]"], RAN, "sweep-1", 1.0))
    table = results.conclude(Ranking(tmp_path, "reward_gain", "maximize"), SWEEP, "a" * 40).table
    assert "[red]" in table
    assert "[/red]" in table


def test_a_sweep_of_which_no_job_has_ended_has_no_table(tmp_path: Path):
    assert results.conclude(Ranking(tmp_path, "reward_gain", "maximize"), SWEEP, "a" * 40) == ("", [])


STAGE_LOG = """$ dvc repro
Running stage 'grpo':
> python -m stages.grpo
39 prompts of 5 to 7 tokens
grpo.warmup_steps: 99 is not below the 25 steps
dvc.yaml: DVC removed what grpo had written before; to bring it back: dvc checkout artifacts/grpo
ERROR: failed to reproduce 'grpo': failed to run: python -m stages.grpo, exited with 1
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (STAGE_LOG, "grpo.warmup_steps: 99 is not below the 25 steps"),
        (
            "Running stage 'grpo':\n> python -m stages.grpo\nERROR: failed to reproduce 'grpo': killed\n",
            "ERROR: failed to reproduce 'grpo': killed",
        ),
        ("$ dvc checkout\nERROR: configuration error - x\n", "ERROR: configuration error - x"),
        ("", "DVC said nothing"),
        (
            "Running stage 'grpo':\n{\n  \"report\": {}\n}\nERROR: failed to reproduce 'grpo': unable to open database file\n",
            "ERROR: failed to reproduce 'grpo': unable to open database file",
        ),
        (
            "ERROR: unexpected error - database or disk is full\n\nHaving any troubles? Hit us up at https://dvc.org/support!\n",
            "ERROR: unexpected error - database or disk is full",
        ),
    ],
)
def test_the_reason_of_a_failure_is_what_the_stage_said_last(log: str, reason: str):
    assert results.reason(log) == reason

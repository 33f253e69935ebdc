from pathlib import Path

import pytest

from stages.core.errors import SettingsError
from stages.sweeps import shared_stages
from stages.sweeps.shared_stages import Stage, key, shared

BASE = Stage("base", frozenset({"base"}))
VALIDATE = Stage("validate", frozenset({"data"}))
REWARD = Stage("reward", frozenset({"base", "data", "reward"}))
GRPO = Stage("grpo", REWARD.sections | {"grpo"})
EVALUATE = Stage("evaluate", GRPO.sections | {"evaluate"})
EXPORT = Stage("export", GRPO.sections | {"export"})
STAGES = [BASE, VALIDATE, REWARD, GRPO, EVALUATE, EXPORT]


def names(runs: list[list[Stage]]) -> list[list[str]]:
    return [[stage.name for stage in run] for run in runs]


def test_the_projects_stages_come_in_order_with_all_that_they_depend_on(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(root)
    found = shared_stages.read()
    assert sorted(found) == sorted(STAGES)
    place = {stage.name: number for number, stage in enumerate(found)}
    assert place["base"] < place["reward"] > place["validate"]
    assert place["reward"] < place["grpo"] < min(place["evaluate"], place["export"])


@pytest.mark.parametrize(
    ("moved", "runs"),
    [
        ({"grpo"}, [["base", "validate", "reward"]]),
        ({"reward"}, [["base", "validate"]]),
        ({"grpo", "reward"}, [["base", "validate"], ["reward"]]),
        ({"evaluate"}, [["base", "validate", "reward", "grpo", "export"]]),
        ({"base"}, [["validate"]]),
        ({"base", "grpo"}, [["validate"], ["base", "reward"]]),
        (set(), [["base", "validate", "reward", "grpo", "evaluate", "export"]]),
        ({"export", "evaluate"}, [["base", "validate", "reward", "grpo"], ["evaluate"], ["export"]]),
    ],
)
def test_jobs_share_the_stages_that_not_everything_in_which_they_differ_bears_on(moved: set[str], runs: list[list[str]]):
    assert names(shared(STAGES, moved)) == runs


def test_a_stages_key_is_of_its_code_and_the_settings_that_bear_on_it_alone():
    values = {section: {"seed": 1} for section in EVALUATE.sections | {"export", "runtime"}}
    assert key(REWARD, "a" * 40, values) == key(REWARD, "a" * 40, {**values, "grpo": {"seed": 2}, "runtime": {"threads": 4}})
    assert key(REWARD, "a" * 40, values) != key(REWARD, "a" * 40, {**values, "base": {"seed": 2}})
    assert key(REWARD, "a" * 40, values) != key(REWARD, "b" * 40, values)
    assert key(GRPO, "a" * 40, values) != key(GRPO, "a" * 40, {**values, "grpo": {"seed": 2}})


def test_a_folder_without_a_pipeline_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"dvc\.yaml: there is no such file; run this from the project's root"):
        shared_stages.read()

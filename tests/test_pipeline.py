"""That DVC takes the project's files as they are committed: the stages, their order, and its own settings."""

import configparser
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.imports import ROOT

pytestmark = pytest.mark.slow


def dvc(folder: Path, *arguments: str) -> str:
    """What dvc says on stdout; fails where it refuses."""
    return subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_dvc_orders_the_stages_by_what_they_read(clone: Path):
    lines = dvc(clone, "dag", "--dot").splitlines()
    edges = {tuple(part.strip(' ";') for part in line.split("->")) for line in lines if "->" in line}
    assert edges == {
        *(("compose", stage) for stage in ("base", "validate", "reward", "grpo", "evaluate", "export")),
        *(("base", stage) for stage in ("reward", "grpo", "evaluate", "export")),
        *(("validate", stage) for stage in ("reward", "grpo", "evaluate")),
        *(("reward", stage) for stage in ("grpo", "evaluate", "export")),
        *(("grpo", stage) for stage in ("evaluate", "export")),
    }


def test_dvc_sends_nothing_and_has_no_remote():
    settings = configparser.ConfigParser()
    settings.read_string((ROOT / ".dvc/config").read_text(encoding="utf-8"))
    assert {name: dict(settings[name]) for name in settings.sections()} == {
        "core": {"analytics": "false", "check_update": "false", "autostage": "false"}
    }


def test_artifacts_are_cached_and_what_git_shows_in_a_diff_is_not():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    outputs = [output for stage in stages.values() for output in (*stage["outs"], *stage.get("metrics", []), *stage.get("plots", []))]
    cached = [output for output in outputs if isinstance(output, str)]
    kept_in_git = {path: options for output in outputs if isinstance(output, dict) for path, options in output.items()}
    assert cached == [f"artifacts/{name}" for name in ("base", "validate", "reward", "grpo", "evaluate", "export")]
    assert kept_in_git.pop("params.yaml") == {"cache": False, "persist": True}
    reports = [f"reports/{name}.json" for name in ("validate", "reward", "grpo", "evaluate")]
    assert kept_in_git == {path: {"cache": False} for path in (*reports, "reports/plots/reward.csv", "reports/plots/grpo.csv")}


def test_the_two_models_are_named_by_their_folders():
    artifacts = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["artifacts"]
    assert {name: (artifact["path"], artifact["type"]) for name, artifact in artifacts.items()} == {
        "reward-model": ("artifacts/reward", "model"),
        "policy": ("artifacts/grpo", "model"),
    }


def test_bytecode_and_unfinished_files_are_no_part_of_a_dependency_and_a_users_folders_are(clone: Path):
    names = [
        "stages/rewards/__pycache__",
        "stages/rewards/length.pyc",
        "data/.pairs.json.7.tmp",
        "data/outputs",
        "data/pairs.tmp",
        "multirun",
    ]
    for name in names:
        (clone / name).mkdir(parents=True, exist_ok=True)
    ignored = subprocess.run([sys.executable, "-m", "dvc", "check-ignore", *names], cwd=clone, capture_output=True, text=True, check=False)
    assert ignored.stdout.split() == [*names[:3], "multirun"]

"""The pipeline as a person runs it: `dvc repro` in clones, what reruns after which change, and the same bytes for the same seed."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import copy_project, git

pytestmark = pytest.mark.slow

STAGES = ("compose", "base", "validate", "reward", "grpo", "evaluate", "export")
SMALL = ("base.fit_steps=5", "reward.epochs=1", "grpo.iterations=1", "grpo.group=2", "evaluate.samples=1", "evaluate.bootstrap=20")
"""Settings under which every stage runs, and none for long."""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A python module run in a clone; the caller looks at its exit code."""
    return subprocess.run([sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def compose(folder: Path, *arguments: str) -> None:
    done = run(folder, "stages.compose", *arguments)
    assert done.returncode == 0, done.stderr


def repro(folder: Path, *arguments: str) -> set[str]:
    """Runs `dvc repro`, checks that nothing is left to do, and returns the stages that ran."""
    done = run(folder, "dvc", "repro", *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    if not arguments:
        assert run(folder, "dvc", "status", "--quiet").returncode == 0
    return set(re.findall(r"^Running stage '(\w+)'", done.stdout, re.MULTILINE))


def digests(folder: Path) -> dict[str, str]:
    """sha256 of everything that a run writes."""
    files = [path for top in ("artifacts", "reports") for path in sorted((folder / top).rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.name != ".gitignore"}


def report(folder: Path, stage: str) -> dict:
    return json.loads((folder / f"reports/{stage}.json").read_bytes())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone whose pipeline has run once with the small settings, committed; what it wrote then is in `digests.json` beside it."""
    folder = tmp_path_factory.mktemp("small") / "clone"
    copy_project(folder)
    compose(folder, *SMALL)
    repro(folder)
    (folder.parent / "digests.json").write_text(json.dumps(digests(folder)), encoding="utf-8")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=run")
    return folder


def test_every_stage_leaves_its_outputs_and_a_second_repro_runs_nothing(small: Path):
    written = digests(small)
    for name in (
        "artifacts/base/base.json",
        "artifacts/base/checkpoint/model.safetensors",
        *(f"artifacts/validate/{what}.{part}.jsonl" for what in ("prompts", "pairs") for part in ("train", "heldout")),
        "artifacts/reward/reward.safetensors",
        "artifacts/reward/reward.json",
        "artifacts/grpo/policy.safetensors",
        "artifacts/grpo/policy.json",
        "artifacts/evaluate/samples.jsonl",
        "artifacts/export/policy/adapter_config.json",
        "artifacts/export/policy/adapter_model.safetensors",
        *(f"reports/{stage}.json" for stage in ("validate", "reward", "grpo", "evaluate")),
        *(f"reports/plots/{stage}.csv" for stage in ("reward", "grpo")),
    ):
        assert name in written, name
    done = run(small, "dvc", "repro")
    assert "up to date" in done.stdout
    assert not re.search("^Running stage", done.stdout, re.MULTILINE)


def test_a_change_reruns_what_depends_on_it_and_nothing_else(small: Path):
    """The rerun matrix, each change on top of the one before, every repro a real one."""
    kept = (small / "artifacts/reward/reward.safetensors").read_bytes()
    compose(small, "grpo.beta=0.1")
    assert repro(small) == {"compose", "grpo", "evaluate", "export"}
    assert (small / "artifacts/reward/reward.safetensors").read_bytes() == kept
    # what has been computed is not computed again
    compose(small, "--drop", "grpo.beta")
    assert repro(small) == {"compose"}
    assert digests(small) == json.loads((small.parent / "digests.json").read_text(encoding="utf-8"))
    compose(small, "grpo.beta=0.1", "reward.rank=4")
    assert repro(small) == {"compose", "reward", "grpo", "evaluate", "export"}
    # by an edit in conf/ alone: plain dvc repro composes first
    settings = small / "conf/evaluate/default.yaml"
    settings.write_text(settings.read_text(encoding="utf-8").replace("seed: 7", "seed: 8"), encoding="utf-8")
    assert repro(small) == {"compose", "evaluate"}
    compose(small, "runtime.threads=2")
    with (small / "conf/grpo/default.yaml").open("a", encoding="utf-8") as stream:
        stream.write("# a remark\n")
    assert repro(small) == {"compose"}
    compose(small, "runtime.threads=1", "base.seed=2")
    assert repro(small) == {"compose", "base", "reward", "grpo", "evaluate", "export"}
    compose(small, "data.seed=3")
    assert repro(small) == {"compose", "validate", "reward", "grpo", "evaluate", "export"}


def test_what_a_run_writes_names_no_place_on_this_machine(small: Path):
    for name in digests(small):
        content = (small / name).read_bytes()
        assert str(small).encode() not in content, name
        assert str(Path.home()).encode() + b"/" not in content, name


def test_a_refusal_under_dvc_says_how_to_bring_back_what_dvc_removed(small: Path):
    git(small, "add", "--all")
    git(small, "commit", "--quiet", "--message=changes")
    compose(small, "reward.max_sequence=2")
    done = run(small, "dvc", "repro", "reward")
    assert done.returncode == 255
    assert "every pair is longer than the sequence limit" in done.stderr
    assert "dvc checkout artifacts/reward && git restore reports/reward.json reports/plots/reward.csv" in done.stderr
    assert not (small / "artifacts/reward/reward.safetensors").exists()
    assert run(small, "dvc", "checkout", "artifacts/reward").returncode == 0
    git(small, "restore", "reports/plots/reward.csv", "reports/reward.json")
    assert (small / "artifacts/reward/reward.safetensors").is_file()
    assert report(small, "reward")["pairs"] > 0


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(small: Path, tmp_path: Path):
    again = tmp_path / "again"
    copy_project(again)
    compose(again, *SMALL)
    repro(again)
    before = json.loads((small.parent / "digests.json").read_text(encoding="utf-8"))
    assert digests(again) == before
    compose(again, "reward.seed=7", "grpo.seed=7", "evaluate.seed=9")
    repro(again)
    after = digests(again)
    moved = {name for name in before if before[name] != after[name]}
    assert {
        "artifacts/reward/reward.safetensors",
        "artifacts/grpo/policy.safetensors",
        "artifacts/evaluate/samples.jsonl",
        "artifacts/export/policy/adapter_model.safetensors",
        *(f"reports/{stage}.json" for stage in ("reward", "grpo", "evaluate")),
    } <= moved
    assert not {name for name in moved if name.startswith(("artifacts/base", "artifacts/validate"))}


def test_a_sweep_trains_what_jobs_share_once_on_a_base_that_lies_beside_the_workspace(small: Path):
    from tests import tiny  # it imports torch

    git(small, "restore", "conf", "params.yaml", "dvc.lock", "reports")
    tiny.save(small.parent / "models/tiny")
    compose(small, "--reset", *SMALL[1:], "base=hub", "base.model=../models/tiny", "base.precision=f32")
    git(small, "add", "--all")
    git(small, "commit", "--quiet", "--message=another base, not run yet")
    done = run(small, "stages.sweep", "-m", "grpo.beta=0,0.2", "hydra.launcher.n_jobs=2")
    assert done.returncode == 0, done.stderr
    ran = "".join(path.read_text(encoding="utf-8") for path in small.rglob("dvc.log"))
    counted = {stage: ran.count(f"Running stage '{stage}'") for stage in STAGES[1:]}
    assert counted == {"base": 1, "validate": 0, "reward": 1, "grpo": 2, "evaluate": 2, "export": 2}
    assert git(small, "status", "--porcelain") == ""
    best = json.loads(next(small.glob("multirun/*/*/sweep.json")).read_bytes())["jobs"][0]
    assert run(small, "dvc", "exp", "apply", best["experiment"]).returncode == 0
    assert report(small, "evaluate")["reward_gain"] == best["figure"]
    assert repro(small) == set()
    assert json.loads((small / "artifacts/base/base.json").read_bytes())["folder"] == "../models/tiny"

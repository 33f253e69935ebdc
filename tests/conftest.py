"""What every test runs under: one thread, no network, the environment's own commands; and copies of the project to run in."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Before torch, transformers or dvc are imported, here or in a process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", DVC_NO_ANALYTICS="1", TOKENIZERS_PARALLELISM="false")
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A Git repository, committed and clean, with the files of this one as they are now, without what Git ignores."""
    target = tmp_path / "clone"
    copy_project(target)
    return target


def copy_project(target: Path) -> None:
    """Makes `target` such a repository; for fixtures that outlive one test."""
    target.mkdir(parents=True)
    for name in git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    git(target, "init", "--quiet", "--initial-branch=main")
    git(target, "config", "user.name", "test")
    git(target, "config", "user.email", "test@localhost")
    git(target, "config", "commit.gpgsign", "false")
    git(target, "add", "--all")
    git(target, "commit", "--quiet", "--no-verify", "--message=start")


def git(folder: Path, *arguments: str) -> str:
    """The output of a Git command in a folder."""
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="session")
def based(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example data, and the base stage's outputs from random weights; to be copied, not written to."""
    folder = tmp_path_factory.mktemp("based")
    shutil.copytree(ROOT / "data" / "examples", folder / "data" / "examples")
    _run_in(folder, "base")
    return folder


@pytest.fixture(scope="session")
def validated(based: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with rows: 3 of the 6 prompts and 3 of the 8 pairs, the last ones, are held out."""
    folder = tmp_path_factory.mktemp("validated")
    shutil.copytree(based, folder, dirs_exist_ok=True)
    _run_in(folder, "validate")
    for name in ("prompts", "pairs"):  # by hand, since which rows a hash holds out of so few is not to matter
        train, heldout = (folder / "artifacts" / "validate" / f"{name}.{side}.jsonl" for side in ("train", "heldout"))
        lines = train.read_text().splitlines(keepends=True)
        train.write_text("".join(lines[:-3]))
        heldout.write_text("".join(lines[-3:]))
    return folder


@pytest.fixture(scope="session")
def trained(validated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a reward model, and a policy trained on it."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(validated, folder, dirs_exist_ok=True)
    _run_in(folder, "reward", "grpo")
    return folder


@pytest.fixture(scope="session")
def stub_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose stages compute nothing, run once and committed; to be cloned, not written to."""
    from tests import stubs

    folder = tmp_path_factory.mktemp("stubs")
    stubs.make(folder / "project", folder / "runs")
    return folder / "project"


@pytest.fixture
def based_project(based: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy with the base alone, the current folder while the test runs."""
    return _enter(based, tmp_path, monkeypatch)


@pytest.fixture
def validated_project(validated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy with base and rows, the current folder while the test runs."""
    return _enter(validated, tmp_path, monkeypatch)


@pytest.fixture
def trained_project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy with everything that evaluate and export read, the current folder while the test runs."""
    return _enter(trained, tmp_path, monkeypatch)


def _run_in(folder: Path, *stages: str) -> None:
    from tests import stage_settings  # it imports torch, which most tests do without

    with contextlib.chdir(folder):
        for stage in stages:
            stage_settings.run(stage)


def _enter(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    shutil.copytree(source, project)
    monkeypatch.chdir(project)
    return project

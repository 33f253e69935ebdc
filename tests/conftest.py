"""What every test runs under: one thread, no network, the environment's own commands; and copies of the project to run in."""

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

"""A checkout of a commit for one job: a Git worktree beside the workspace, whose files it leaves alone, on the workspace's DVC cache.

Git's references are common to all worktrees, so every command that changes them is run under one lock.
"""

import contextlib
import io
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dvc.config import Config, merge

from stages.core import layout
from stages.core.locks import held, held_at_once
from stages.versions import experiments
from stages.versions.git import GitError, git, git_bytes

JOBS = layout.SWEEP_STATE / "jobs"
SITES = layout.SWEEP_STATE / "site"
_GIT_LOCK = layout.SWEEP_STATE / "git.lock"
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
"""A hook of the user's, such as DVC's own after a checkout, is for their workspace."""
_LINKS = "reflink,hardlink,symlink,copy"
"""How outputs come out of the cache, first that works: no job copies a base checkpoint where the file system has links. Stages never
write into a file that is there, and DVC unlinks outputs before it runs a stage, so a link is as safe as a copy."""


class Checkout(NamedTuple):
    """A job's checkout."""

    top: Path
    """Where the worktree begins."""
    project: Path
    """Where dvc.yaml is in it, which is deeper where the project is a folder of a larger repository."""
    site: Path
    """Folder for what DVC notes of a project outside it."""
    cache: Path
    """Folder of DVC's cache, the workspace's own."""


@contextlib.contextmanager
def made(name: str, commit: str) -> Iterator[Checkout]:
    """A worktree at the commit while the block runs, set up for DVC; it is removed afterwards, also where the block fails."""
    top = (JOBS / name).resolve()
    _remove(top)
    with held(_GIT_LOCK):
        git(*_NO_HOOKS, "worktree", "add", "--quiet", "--force", "--detach", str(top), commit)
    try:
        project = top / git("rev-parse", "--show-prefix")
        yield Checkout(top, project, (SITES / name).resolve(), _set_up(project))
    finally:
        _remove(top)


@contextlib.contextmanager
def settings_at(commit: str) -> Iterator[Path]:
    """A copy of the commit's conf/ while the block runs, whatever the workspace's is by now. Raises GitError."""
    archive = git_bytes("archive", "--format=tar", commit, layout.CONF.as_posix())
    if archive is None:
        raise GitError(f"{layout.CONF} of {commit[:7]}: Git does not have it; commit the project's settings")
    with tempfile.TemporaryDirectory(prefix="sweep-") as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        yield Path(folder) / layout.CONF


def record(checkout: Checkout, commit: str, name: str, message: str) -> None:
    """Commits what the job changed on top of the commit, as an experiment of DVC's; raises GitError where it has that name already."""
    who = () if git("var", "GIT_COMMITTER_IDENT", check=False) else ("-c", "user.name=leash", "-c", "user.email=leash@localhost")
    with held(_GIT_LOCK):
        git(*_NO_HOOKS, "add", "--all", ".", folder=checkout.project)
        options = ("-c", "commit.gpgsign=false", *_NO_HOOKS, *who)
        git(*options, "commit", "--quiet", "--allow-empty", "--no-verify", "--message", message, folder=checkout.top)
        git(*_NO_HOOKS, "update-ref", experiments.reference(commit, name), git("rev-parse", "HEAD", folder=checkout.top), "0" * len(commit))


def remove_abandoned(patience: float = 0.0) -> None:
    """Removes the worktrees of jobs that were killed; those of jobs that run are left alone.

    A job that is being killed has so many seconds to be gone.
    """
    end = time.monotonic() + patience
    for top in sorted(path for path in JOBS.glob("*") if path.is_dir()):
        while True:
            with held_at_once(job_lock(top.name)) as free:
                if free:
                    _remove(top.resolve())
            if free or time.monotonic() >= end:
                break
            time.sleep(0.1)


def job_lock(name: str) -> Path:
    """The lock that a job holds while it runs."""
    return JOBS / f"{name}.lock"


def _remove(top: Path) -> None:
    """Removes a worktree and what Git knows of it; other worktrees, such as the user's own, are not touched."""
    with held(_GIT_LOCK):
        remove = (*_NO_HOOKS, "worktree", "remove", "--force", "--force", str(top))
        git(*remove, check=False)
        if top.exists():  # half removed, by a job that was killed meanwhile; Git forgets one that is gone altogether
            shutil.rmtree(top, ignore_errors=True)
            git(*remove, check=False)
        shutil.rmtree(SITES / top.name, ignore_errors=True)


def cache() -> Path:
    """The folder of the workspace's DVC cache."""
    return Path(Config(str(layout.DVC.resolve())).read()["cache"].get("dir", (layout.DVC / "cache").resolve()))


def _set_up(project: Path) -> Path:
    """Writes the worktree's .dvc/config.local: all of the workspace's settings, with paths that hold from there; gives the cache."""
    settings = Config(str(layout.DVC.resolve())).read()
    settings["cache"]["dir"] = str(cache())
    settings["cache"].setdefault("type", _LINKS)
    with Config(str(project / layout.DVC)).edit("local") as local:
        merge(local, settings)
    return Path(settings["cache"]["dir"])

"""A checkout of a commit for one job: a Git worktree beside the workspace, which it leaves alone, on the workspace's own cache.

Git's references are common to all worktrees, so every command that changes them is run under one lock.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dvc.config import Config, merge

from stages.core import layout
from stages.core.locks import held, held_at_once
from stages.versions.git import git

JOBS = layout.SWEEP_STATE / "jobs"
_GIT_LOCK = layout.SWEEP_STATE / "git.lock"
_DVC = Path(".dvc")
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
"""A hook of the user's, such as DVC's own after a checkout, is for their workspace."""
_LINKS = "reflink,hardlink,symlink,copy"
"""How outputs come out of the cache, first that works: no job copies a base checkpoint where the file system has links. Stages never
write into a file that is there, and DVC unlinks outputs before it runs a stage, so a link is as safe as a copy."""


class Workspace(NamedTuple):
    """A job's checkout."""

    top: Path
    """Where the worktree begins."""
    project: Path
    """Where dvc.yaml is in it, which is deeper where the project is a folder of a larger repository."""


@contextlib.contextmanager
def checked_out(name: str, commit: str) -> Iterator[Workspace]:
    """A worktree at the commit while the block runs, set up for DVC; it is removed afterwards, also where the block fails."""
    top = JOBS / name
    _remove(top)
    with held(_GIT_LOCK):
        git(*_NO_HOOKS, "worktree", "add", "--quiet", "--force", "--detach", str(top.resolve()), commit)
    try:
        project = top.resolve() / git("rev-parse", "--show-prefix")
        _set_up(project)
        yield Workspace(top.resolve(), project)
    finally:
        _remove(top)


def record(workspace: Workspace, commit: str, name: str, message: str) -> None:
    """Commits what the job changed on top of the commit, as an experiment of DVC's; raises GitError where it has that name already."""
    who = () if git("var", "GIT_COMMITTER_IDENT", check=False) else ("-c", "user.name=leash", "-c", "user.email=leash@localhost")
    with held(_GIT_LOCK):
        git("add", "--all", ".", folder=workspace.project)
        options = ("-c", "commit.gpgsign=false", *_NO_HOOKS, *who)
        git(*options, "commit", "--quiet", "--allow-empty", "--no-verify", "--message", message, folder=workspace.top)
        git("update-ref", reference(commit, name), git("rev-parse", "HEAD", folder=workspace.top), "0" * len(commit))


def reference(commit: str, name: str) -> str:
    """Where Git keeps an experiment of DVC's that starts from the commit."""
    return f"refs/exps/{commit[:2]}/{commit[2:]}/{name}"


def remove_abandoned() -> None:
    """Removes the worktrees of jobs that were killed; those of jobs that run are left alone."""
    for top in sorted(path for path in JOBS.glob("*") if path.is_dir()):
        with held_at_once(job_lock(top.name)) as free:
            if free:
                _remove(top)


def job_lock(name: str) -> Path:
    """The lock that a job holds while it runs."""
    return JOBS / f"{name}.lock"


def _remove(top: Path) -> None:
    with held(_GIT_LOCK):
        if top.exists():
            git("worktree", "remove", "--force", "--force", str(top.resolve()), check=False)
            shutil.rmtree(top, ignore_errors=True)
        git("worktree", "prune")


def _set_up(project: Path) -> None:
    """Writes the worktree's .dvc/config.local: all of the workspace's settings, with paths that hold from there, and its cache."""
    settings = Config(str(_DVC.resolve())).read()
    settings["cache"].setdefault("dir", str((_DVC / "cache").resolve()))
    settings["cache"].setdefault("type", _LINKS)
    with Config(str(project / _DVC)).edit("local") as local:
        merge(local, settings)

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.config import Config

from stages.sweeps import checkout as checkouts
from stages.versions.git import GitError
from tests.conftest import git

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of Git and DVC with one commit, the current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name, value in (("user.name", "test"), ("user.email", "test@localhost"), ("commit.gpgsign", "false")):
        git(folder, "config", name, value)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], check=True)
    (folder / ".gitignore").write_text("/.state/\n")
    (folder / "file").write_text("one")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=start")
    return folder


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD").strip()


def settings(project: Path) -> Config:
    return Config(str(project / ".dvc"))


def test_a_checkout_is_of_the_commit_on_the_workspaces_cache_and_gone_afterwards(project: Path):
    (project / "file").write_text("not committed")
    with checkouts.made("job", head(project)) as checkout:
        assert (checkout.project / "file").read_text() == "one"
        cache = settings(checkout.project)["cache"]
        assert Path(cache["dir"]) == project / ".dvc/cache"
        assert cache["type"] == ["reflink", "hardlink", "symlink", "copy"]
        assert git(checkout.project, "status", "--porcelain") == ""
    assert not checkout.top.exists()
    assert len(git(project, "worktree", "list").splitlines()) == 1
    assert (project / "file").read_text() == "not committed"


def test_the_workspaces_own_settings_hold_in_it_with_paths_that_are_right_there(project: Path):
    (project / ".dvc/config").write_text("[core]\n    remote = near\n['remote \"near\"']\n    url = ../../near\n[cache]\n    type = copy\n")
    git(project, "commit", "--quiet", "--all", "--message=remote")
    (project / ".dvc/config.local").write_text(
        "['remote \"far\"']\n    url = s3://bucket/x\n    endpointurl = http://a\n[cache]\n    dir = ../../cache\n"
    )
    with checkouts.made("job", head(project)) as checkout:
        found = settings(checkout.project)
    assert Path(found["remote"]["near"]["url"]) == project.parent / "near"
    assert (found["remote"]["far"]["url"], found["remote"]["far"]["endpointurl"]) == ("s3://bucket/x", "http://a")
    assert (Path(found["cache"]["dir"]), found["cache"]["type"]) == (project.parent / "cache", ["copy"])
    assert found["core"]["remote"] == "near"


def test_what_breaks_off_leaves_no_checkout_and_one_that_was_left_is_replaced(project: Path):
    left = checkouts.JOBS / "job"
    left.mkdir(parents=True)
    (left / "remains").write_text("")
    with pytest.raises(KeyboardInterrupt), checkouts.made("job", head(project)) as checkout:
        assert not (checkout.top / "remains").exists()
        raise KeyboardInterrupt
    assert not left.exists()


def test_the_users_hooks_are_not_run(project: Path):
    for name in ("post-checkout", "pre-commit", "commit-msg", "post-commit", "post-index-change", "reference-transaction"):
        hook = project / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch '{project.parent}/ran-{name}'\nexit 1\n")
        hook.chmod(0o755)
    with checkouts.made("job", head(project)) as checkout:
        checkouts.record(checkout, head(project), "sweep-1", "sweep: x")
    assert not list(project.parent.glob("ran-*"))


def test_what_a_job_changed_becomes_an_experiment_of_that_commit_and_a_name_is_given_once(project: Path):
    start = head(project)
    with checkouts.made("job", start) as checkout:
        (checkout.project / "file").write_text("two")
        checkouts.record(checkout, start, "sweep-1", "sweep: grpo.beta=1")
        with pytest.raises(GitError, match="update-ref"):
            checkouts.record(checkout, start, "sweep-1", "sweep: grpo.beta=1")
    reference = f"refs/exps/{start[:2]}/{start[2:]}/sweep-1"
    assert git(project, "show", f"{reference}:file") == "two"
    assert git(project, "rev-parse", f"{reference}^").strip() == start
    assert head(project) == start


def test_a_job_is_recorded_where_git_knows_no_one(project: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("user.name", "user.email"):
        git(project, "config", "--unset", name)
    for name in list(os.environ):
        if name.startswith(("GIT_AUTHOR", "GIT_COMMITTER")):
            monkeypatch.delenv(name)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.delenv("EMAIL", raising=False)
    git(project, "config", "user.useConfigOnly", "true")
    with checkouts.made("job", head(project)) as checkout:
        checkouts.record(checkout, head(project), "sweep-1", "sweep: x")
    assert "leash@localhost" in git(project, "log", "-1", "--format=%ae", f"refs/exps/{head(project)[:2]}/{head(project)[2:]}/sweep-1")


def test_checkouts_of_killed_jobs_are_removed_and_one_whose_job_runs_is_left(project: Path):
    commit = head(project)
    checkouts.SITES.mkdir(parents=True)
    for name in ("killed", "running"):
        (checkouts.SITES / name).mkdir()
        git(project, "worktree", "add", "--quiet", "--detach", str(checkouts.JOBS / name), commit)
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(checkouts.job_lock("running"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        checkouts.remove_abandoned()
        assert [path.name for path in checkouts.JOBS.iterdir() if path.is_dir()] == ["running"]
        assert [path.name for path in checkouts.SITES.iterdir()] == ["running"]
        assert len(git(project, "worktree", "list").splitlines()) == 2
    checkouts.remove_abandoned()
    assert len(git(project, "worktree", "list").splitlines()) == 1


def test_the_users_own_worktree_whose_folder_is_away_stays_known(project: Path):
    away = project.parent / "away"
    git(project, "worktree", "add", "--quiet", "--detach", str(away), head(project))
    away.rename(project.parent / "unmounted")
    with checkouts.made("job", head(project)):
        pass
    checkouts.remove_abandoned()
    (project.parent / "unmounted").rename(away)
    assert git(away, "rev-parse", "HEAD").strip() == head(project)


def test_what_git_sets_for_a_hook_does_not_lead_elsewhere(project: Path, monkeypatch: pytest.MonkeyPatch):
    start = head(project)
    monkeypatch.setenv("GIT_DIR", str(project / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(project / ".git/index"))
    with checkouts.made("job", start) as checkout:
        (checkout.project / "file").write_text("two")
        checkouts.record(checkout, start, "sweep-1", "sweep: x")
    monkeypatch.undo()
    assert git(project, "rev-parse", "HEAD").strip() == start
    assert git(project, "show", f"refs/exps/{start[:2]}/{start[2:]}/sweep-1:file") == "two"


def test_the_settings_of_a_commit_are_had_whatever_the_workspace_has(project: Path):
    (project / "conf").mkdir()
    (project / "conf/config.yaml").write_text("one")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message=conf")
    (project / "conf/config.yaml").write_text("two")
    with checkouts.settings_at(head(project)) as conf:
        assert (conf / "config.yaml").read_text() == "one"
    assert not conf.exists()
    with (
        pytest.raises(GitError, match=r"conf of .*: Git does not have it"),
        checkouts.settings_at(git(project, "rev-parse", "HEAD~1").strip()),
    ):
        pass


@pytest.mark.parametrize("part", [".git", "."])
def test_a_checkout_that_was_half_removed_is_removed_and_forgotten(project: Path, part: str):
    top = checkouts.JOBS / "killed"
    git(project, "worktree", "add", "--quiet", "--detach", str(top), head(project))
    shutil.rmtree(top) if part == "." else (top / part).unlink()
    top.mkdir(exist_ok=True)
    checkouts.remove_abandoned()
    assert not top.exists()
    assert len(git(project, "worktree", "list").splitlines()) == 1

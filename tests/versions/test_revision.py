"""Names of versions: what Git knows, experiments as DVC keeps them, the workspace; and what each has of a file."""

from pathlib import Path

import pytest

from stages.core import layout
from stages.core.errors import SettingsError
from stages.versions.revision import Revision, resolve
from tests.conftest import git


def commit(folder: Path, text: str) -> str:
    (folder / "params.yaml").write_text(text)
    (folder / "dvc.yaml").write_text("stages: {}\n")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "--message=one")
    return git(folder, "rev-parse", "HEAD").strip()


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two commits in the current folder."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    monkeypatch.chdir(tmp_path)
    return [commit(tmp_path, "a: 1\n"), commit(tmp_path, "a: 2\n")]


def experiment(name: str, commit: str, baseline: str) -> None:
    git(Path(), "update-ref", f"refs/exps/{baseline[:2]}/{baseline[2:]}/{name}", commit)


def refusal(name: str) -> str:
    with pytest.raises(SettingsError) as caught:
        resolve(name)
    (line,) = caught.value.lines()
    assert caught.value.exit_code == 2
    return line


def test_commits_tags_branches_and_what_git_makes_of_them_are_versions(commits: list[str]):
    git(Path(), "tag", "--annotate", "-m", "x", "v1", commits[0])
    git(Path(), "branch", "side/one", commits[0])
    for name in ("HEAD~1", "v1", "side/one", commits[0], commits[0][:8], "HEAD^"):
        assert resolve(name).commit == commits[0], name
    assert resolve("main").commit == resolve("HEAD").commit == commits[1]


def test_a_label_has_the_name_and_the_commit_where_they_are_two_things(commits: list[str]):
    short = commits[0][:7]
    assert [resolve(name).label for name in ("HEAD~1", commits[0], commits[0][:9], "workspace")] == [
        f"HEAD~1 ({short})",
        short,
        short,
        "workspace",
    ]


def test_a_file_is_the_versions_own_and_the_workspaces_is_the_one_on_disk(commits: list[str]):
    layout.PARAMS.write_text("a: 3\n")
    assert [resolve(name).content(layout.PARAMS) for name in ("HEAD~1", "HEAD", "workspace")] == [b"a: 1\n", b"a: 2\n", b"a: 3\n"]
    assert [resolve(name).content(Path("other")) for name in ("HEAD", "workspace")] == [None, None]


def test_a_project_may_lie_below_the_top_of_its_repository(commits: list[str], monkeypatch: pytest.MonkeyPatch):
    inner = Path("inner")
    inner.mkdir()
    commit(inner, "b: 1\n")
    monkeypatch.chdir(inner)
    assert resolve("HEAD").content(layout.PARAMS) == b"b: 1\n"
    assert "it has no dvc.yaml and no params.yaml here" in refusal("HEAD~1")


def test_an_experiment_is_found_by_its_name(commits: list[str]):
    experiment("brave-toy", commits[1], baseline=commits[0])
    assert resolve("brave-toy") == Revision("brave-toy", commits[1])


def test_of_experiments_of_one_name_the_one_from_head_is_meant_and_else_none(commits: list[str]):
    experiment("twice", commits[0], baseline=commits[0])
    experiment("twice", commits[1], baseline=commits[1])
    assert resolve("twice").commit == commits[1]
    commit(Path(), "a: 4\n")
    line = refusal("twice")
    assert line.startswith("twice: experiments of several commits have this name: ")
    for one in commits:
        assert f"{one[:7]} (from {one[:7]})" in line


def test_what_dvc_keeps_beside_experiments_is_none(commits: list[str]):
    git(Path(), "update-ref", "refs/exps/exec/EXEC_HEAD", commits[0])
    git(Path(), "update-ref", "refs/exps/stash", commits[0])
    assert "none of them" in refusal("EXEC_HEAD")
    assert "none of them" in refusal("stash")


@pytest.mark.parametrize(("name", "near"), [("mian", "main"), ("workspce", "workspace"), ("brave-toi", "brave-toy"), ("v1.0.1", "v1.0.0")])
def test_a_name_of_nothing_is_refused_with_those_that_are_near(commits: list[str], name: str, near: str):
    experiment("brave-toy", commits[1], baseline=commits[0])
    git(Path(), "tag", "v1.0.0")
    assert refusal(name) == (
        f"{name}: expected a commit, a tag, a branch, an experiment or workspace, and it is none of them; did you mean {near}?"
    )


@pytest.mark.parametrize("name", ["", "zzz", "-q", "--all", "HEAD..HEAD~1", "HEAD:params.yaml", "a b", "refs/exps/*"])
def test_what_git_would_take_for_something_else_is_no_name(commits: list[str], name: str):
    assert "none of them" in refusal(name)


def test_a_version_without_the_pipeline_is_refused_by_what_it_lacks(commits: list[str]):
    git(Path(), "rm", "--quiet", "dvc.yaml")
    git(Path(), "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "--message=less")
    assert "it has no dvc.yaml here, so there is nothing to compare" in refusal("HEAD")
    assert refusal("workspace").startswith("workspace: it has no dvc.yaml here")


def test_outside_of_git_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(SettingsError, match="this folder is in no Git repository; run it from the project's root"):
        resolve("HEAD")

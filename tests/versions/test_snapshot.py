"""Outputs of a version: from the cache, from a remote, from neither; and nothing left behind."""

import shutil
import tempfile
from pathlib import Path

import pytest

from stages.core import layout
from stages.core.errors import SettingsError
from stages.files import artifacts
from stages.versions import snapshot
from stages.versions.revision import resolve
from stages.versions.snapshot import MissingError, opened
from tests.conftest import git
from tests.versions.projects import Project, artifact

pytestmark = pytest.mark.slow

CACHE = Path(".dvc/cache")


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of one commit, `first`, whose policy in the workspace is another by now; to be copied."""
    made = Project.begun(tmp_path_factory.mktemp("committed") / "project")
    made.commit("first")
    made.artifact(layout.POLICY, artifact(seed=9))
    return made


@pytest.fixture
def project(committed: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of it, the current folder."""
    shutil.copytree(committed.folder, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return Project(tmp_path / "project")


def policy_of_first() -> bytes:
    with opened(resolve("first")) as first:
        return (first.output(layout.POLICY.parent) / layout.POLICY.name).read_bytes()


def expected(folder: Path) -> bytes:
    path = folder / "expected.safetensors"
    artifacts.write(path, artifact())
    return path.read_bytes()


def test_an_output_is_the_versions_own_and_the_workspaces_stays(project: Project, tmp_path: Path):
    before = layout.POLICY.read_bytes()
    assert policy_of_first() == expected(tmp_path) != before
    assert layout.POLICY.read_bytes() == before
    with opened(resolve("workspace")) as workspace:
        assert workspace.output(layout.POLICY) == layout.POLICY


def test_a_file_of_an_output_is_fetched_alone(project: Project):
    with opened(resolve("first")) as first:
        assert first.output(layout.BASE_RECORD).read_bytes() == layout.BASE_RECORD.read_bytes()
        assert not (first.folder / "artifacts/grpo").exists()


def test_what_was_fetched_is_gone_afterwards(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    policy_of_first()
    with pytest.raises(KeyError), opened(resolve("first")) as first:
        first.output(layout.VALIDATE)
        raise KeyError
    assert list(scratch.iterdir()) == []


def test_without_cache_and_remote_it_is_named_with_what_to_do(project: Project):
    shutil.rmtree(CACHE)
    with opened(resolve("first")) as first, pytest.raises(MissingError) as caught:
        first.output(layout.POLICY.parent)
    (line,) = caught.value.lines()
    assert line.startswith(f"artifacts/grpo of {first.label}: neither in the cache nor in a remote (")
    assert line.endswith(
        "dvc push --all-commits where it was made and dvc fetch --all-commits here bring it, or dvc repro at that version makes it anew"
    )
    assert not (first.folder / "artifacts/grpo").exists()
    with (
        opened(resolve("first")) as first,
        pytest.raises(MissingError, match=r"^artifacts/base/base\.json of .*: neither in the cache nor"),
    ):
        first.output(layout.BASE_RECORD)  # of a folder that DVC keeps


def test_a_folder_of_which_the_cache_has_a_part_is_not_taken_for_whole(project: Project):
    from hashlib import md5

    digest = md5(layout.REWARD.read_bytes(), usedforsecurity=False).hexdigest()
    (CACHE / "files/md5" / digest[:2] / digest[2:]).unlink()
    with opened(resolve("first")) as first:
        for _ in range(2):
            with pytest.raises(MissingError):
                first.output(layout.REWARD.parent)
        first.output(layout.POLICY.parent)


@pytest.mark.parametrize("level", [[], ["--local"]])
def test_a_remote_that_the_present_configuration_alone_names_is_asked(project: Project, tmp_path: Path, level: list[str]):
    """Its url is relative to .dvc, and `first` does not know of it."""
    project.dvc("remote", "add", "--default", *level, "shelf", "../shelf")
    project.artifact(layout.POLICY, artifact())
    project.dvc("push", "--quiet")
    shutil.rmtree(CACHE)
    assert policy_of_first() == expected(tmp_path)


def test_a_cache_elsewhere_that_the_present_configuration_names_is_read(project: Project, tmp_path: Path):
    shutil.move(CACHE, tmp_path / "elsewhere")
    project.dvc("cache", "dir", "--local", "../elsewhere")
    assert policy_of_first() == expected(tmp_path)


def test_a_project_may_lie_below_the_top_of_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "top").mkdir()
    inner = Project.begun(tmp_path / "top/inner/most", repository=tmp_path / "top")
    inner.commit("first")
    inner.artifact(layout.POLICY, artifact(seed=9))
    monkeypatch.chdir(inner.folder)
    assert policy_of_first() == expected(tmp_path)


def test_an_output_that_the_version_does_not_have_is_named(project: Project):
    with (
        opened(resolve("first")) as first,
        pytest.raises(MissingError, match=r"artifacts/export of first \(.*\): dvc.lock does not have it"),
    ):
        first.output(layout.EXPORT)
    with opened(resolve("workspace")) as workspace, pytest.raises(MissingError, match="artifacts/export of workspace: it is not there"):
        workspace.output(layout.EXPORT)


def test_messages_name_files_as_the_version_has_them(project: Project):
    with opened(resolve("first")) as first:
        folder = first.output(layout.POLICY.parent)
        (folder / "policy.safetensors").write_bytes(b"")
        with pytest.raises(artifacts.ArtifactError) as caught:
            artifacts.read(folder / "policy.safetensors", artifacts.ADAPTER)
        (line,) = first.told(caught.value)
    assert line.startswith(f"{first.label}: artifacts/grpo/policy.safetensors: not a safetensors file")


def test_a_tracked_file_is_put_where_it_can_be_read(project: Project):
    layout.PARAMS.write_text("changed: 1\n")
    with opened(resolve("first")) as first, opened(resolve("workspace")) as workspace:
        assert b"beta: 0.04" in first.tracked(layout.PARAMS).read_bytes()
        assert workspace.tracked(layout.PARAMS) == layout.PARAMS
        assert first.tracked(Path("nope")) is None


def test_a_configuration_that_dvc_cannot_read_is_said(project: Project):
    Path(".dvc/config.local").write_text("[cache\n")
    with pytest.raises(SettingsError, match=r"first \(.*\): DVC cannot open it"), opened(resolve("first")):
        pass


def test_a_version_from_before_dvc_is_said(project: Project):
    git(project.folder, "rm", "--quiet", "-r", "--cached", ".dvc")
    git(project.folder, "commit", "--quiet", "--message=less")
    with pytest.raises(SettingsError, match="DVC cannot open it"), opened(resolve("HEAD")):
        pass


def test_a_worktree_of_the_repository_has_the_same_versions(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    git(project.folder, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"), "first")
    monkeypatch.chdir(tmp_path / "tree")
    Path(".dvc/config.local").write_text(f"[cache]\n    dir = {project.folder / CACHE}\n")
    assert policy_of_first() == expected(tmp_path)


def test_dvc_is_not_asked_for_what_the_workspace_has(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(snapshot, "Repo", None)
    with opened(resolve("workspace")) as workspace:
        assert workspace.output(layout.SAMPLES) == layout.SAMPLES


def test_what_the_cache_has_damaged_is_named_and_not_taken(project: Project):
    with opened(resolve("first")) as first:
        cached = next(
            path
            for path in CACHE.glob("files/md5/*/*")
            if path.read_bytes() == (first.output(layout.SAMPLES.parent) / layout.SAMPLES.name).read_bytes()
        )
    cached.chmod(0o644)
    cached.write_bytes(cached.read_bytes().replace(b" writes ", b" wrote "))
    with opened(resolve("first")) as first, pytest.raises(MissingError) as caught:
        first.output(layout.SAMPLES.parent)
    kept = cached.relative_to(CACHE)
    assert caught.value.lines()[0].startswith(f"{layout.SAMPLES} of first (")
    assert f"DVC's cache has it damaged ({kept} is not what dvc.lock names)" in caught.value.lines()[0]

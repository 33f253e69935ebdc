"""Git's output, byte for byte or less one newline, and its refusals in one line."""

from pathlib import Path

import pytest

from stages.versions.git import GitError, git, git_bytes
from tests import conftest


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    conftest.git(tmp_path, "init", "--quiet", "--initial-branch=main")
    (tmp_path / "file").write_bytes(b"a\xff\n\n")
    conftest.git(tmp_path, "add", "file")
    conftest.git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "--message=one")
    return tmp_path


def test_text_lacks_its_final_newline_alone(repository: Path):
    assert git("log", "--format=%s", folder=repository) == "one"
    assert git("show", "HEAD:file", folder=repository) == "a\ufffd\n"


def test_bytes_are_as_git_writes_them_and_none_where_it_fails(repository: Path):
    assert git_bytes("show", "HEAD:file", folder=repository) == b"a\xff\n\n"
    assert git_bytes("show", "HEAD:other", folder=repository) is None


def test_a_failure_is_the_command_and_gits_last_line(repository: Path):
    with pytest.raises(GitError) as caught:
        git("rev-parse", "--verify", "nope", folder=repository)
    assert caught.value.lines() == ["git rev-parse --verify nope: fatal: Needed a single revision"]
    assert git("rev-parse", "--verify", "nope", folder=repository, check=False) == ""


def test_without_git_it_is_said(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(repository))
    with pytest.raises(GitError, match="install Git"):
        git("status", folder=repository)

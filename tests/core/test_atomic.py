import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stages.core import stopping
from stages.core.atomic import together, write_bytes


def test_a_file_is_written_with_the_folders_it_needs(tmp_path):
    write_bytes(tmp_path / "a" / "b.txt", b"text")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"text"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"]


def test_a_full_disk_leaves_the_earlier_file_and_names_it(tmp_path, monkeypatch):
    path = tmp_path / "b.txt"
    path.write_bytes(b"before")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as refused:
        write_bytes(path, b"after")
    assert refused.value.filename == str(path)
    assert refused.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["b.txt"]


def test_files_written_together_appear_when_all_are_written(tmp_path):
    with together():
        write_bytes(tmp_path / "a", b"1")
        write_bytes(tmp_path / "b", b"2")
        assert not (tmp_path / "a").exists()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("last", ["folder", "file/below"])
def test_where_one_cannot_be_written_none_of_those_written_together_appears(tmp_path, last):
    (tmp_path / "a").write_bytes(b"before")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=str(tmp_path / last.partition("/")[0])), together():
        write_bytes(tmp_path / "a", b"after")
        write_bytes(tmp_path / "b", b"after")
        write_bytes(tmp_path / last, b"after")
    assert (tmp_path / "a").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "file", "folder"]


def test_a_set_within_a_set_appears_with_it(tmp_path):
    with together():
        write_bytes(tmp_path / "outer", b"")
        with together():
            write_bytes(tmp_path / "inner", b"")
        assert all(path.name.endswith(".tmp") for path in tmp_path.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inner", "outer"]


def test_a_signal_waits_until_all_that_was_written_together_has_its_names(tmp_path, monkeypatch):
    """Or there would be one file of the old pair and one of the new."""
    before = signal.getsignal(signal.SIGTERM)
    stopping.listen()
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (signal.raise_signal(signal.SIGTERM), replace(self, target)))
    try:
        with pytest.raises(stopping.Stopped), together():
            write_bytes(tmp_path / "a", b"1")
            write_bytes(tmp_path / "b", b"2")
    finally:
        for signum in stopping.SIGNALS:
            signal.signal(signum, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_what_a_killed_process_left_beside_a_file_goes_with_the_next_write_and_a_living_ones_stays(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    for name in (f".a.json.{gone.pid}.tmp", f".a.json.{os.getppid()}.tmp", f".b.json.{gone.pid}.tmp", ".a.json.tmp"):
        (tmp_path / name).touch()
    write_bytes(tmp_path / "a.json", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["a.json", f".a.json.{os.getppid()}.tmp", f".b.json.{gone.pid}.tmp", ".a.json.tmp"]
    )

import errno
import os

import pytest

from stages.core.atomic import write_bytes


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

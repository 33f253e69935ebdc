import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stages.core.errors import BusyError
from stages.core.locks import held, held_alone, held_at_once

HOLD = """
import pathlib, sys
from stages.core.locks import held
with held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its stdin is closed, or it is killed."""
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    return other


def test_a_second_process_waits_says_so_and_gets_it_when_the_first_is_killed(tmp_path: Path):
    path = tmp_path / "deep" / "lock"
    told = []
    with holder(path) as other:

        def waiting() -> None:
            told.append("waits")
            other.kill()

        with held(path, waiting):
            assert told == ["waits"]


def test_a_free_lock_is_taken_without_a_word_and_its_file_is_read_and_written(tmp_path: Path):
    path = tmp_path / "lock"
    with held(path, lambda: 1 / 0) as file:
        assert file.read() == ""
        file.write("done")
    with held(path, lambda: 1 / 0) as file:
        assert file.read() == "done"


def test_one_that_does_not_wait_is_told_whether_it_has_the_lock(tmp_path: Path):
    path = tmp_path / "lock"
    with holder(path) as other:
        with held_at_once(path) as mine:
            assert mine is False
        assert other.stdin is not None
        other.stdin.close()
        other.wait()
        with held_at_once(path) as mine:
            assert mine is True


HOLD_ALONE = """
import pathlib, sys
from stages.core.locks import held_alone
with held_alone(pathlib.Path(sys.argv[1]), "sample", 0, print):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_of_its_kind_is_told_who_holds_the_lock(tmp_path: Path):
    path = tmp_path / "sample.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD_ALONE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        told: list[str] = []
        with pytest.raises(BusyError) as refused, held_alone(path, "sample", 0.3, told.append):
            pass
        assert told == [f"{path}: waits for process {other.pid}, which runs sample here"]
        assert str(refused.value).startswith(f"{path}: process {other.pid} runs sample here; one run at a time is expected; wait ")
        threading.Timer(0.3, other.stdin.close).start()
        with held_alone(path, "sample", 30, told.append):  # it ends within the patience
            assert path.read_text() == f"{os.getpid()}\n"


def test_a_passing_lock_leaves_no_file_and_is_not_taken_twice(tmp_path: Path):
    path = tmp_path / "run.lock"
    with held_at_once(path, passing=True) as first:
        with held_at_once(path, passing=True) as second:
            assert (first, second) == (True, False)
        assert path.exists()
    assert not path.exists()
    with pytest.raises(KeyError), held_at_once(path, passing=True):
        raise KeyError
    assert not path.exists()


@pytest.mark.parametrize("lock", [held, held_at_once, lambda path: held_alone(path, "grpo", 0, print)])
def test_a_file_system_that_cannot_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: Any):
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(OSError, match=r"No locks available \(the file system does not lock files\)") as failure, lock(tmp_path / "lock"):
        pass
    assert failure.value.filename == str(tmp_path / "lock")

import subprocess
import sys
from pathlib import Path

from stages.core.locks import held, held_at_once

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

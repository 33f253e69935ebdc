"""dvc.lock after a dvc that was killed: whole, or put back."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.core import lock_guard
from stages.core.lock_guard import is_whole, watch

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system tells nobody when a process has ended")

FIRST = """\
schema: '2.0'
stages:
  reward:
    cmd: one
    deps:
    - path: data
      hash: md5
      md5: aa
      size: 1
    outs:
    - path: artifacts/reward
      hash: md5
      md5: bb.dir
      size: 2
"""
SECOND = FIRST.replace("aa", "cc") + FIRST[FIRST.index("  reward:") :].replace("reward", "grpo")


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("dvc.lock")
    path.write_text(FIRST)
    return path


def test_a_part_of_a_file_is_told_from_a_whole_one():
    """Cut anywhere but behind a file's digest: a stage that lacks the next ones is one that DVC itself finds changed."""
    lines = SECOND.splitlines(keepends=True)
    harmless = ("      md5", "      size", "    cmd")
    ends = [len("".join(lines[: number + 1])) for number, line in enumerate(lines) if line.startswith(harmless)]
    last = SECOND.index("  grpo:")
    wrong = [end for end in range(len(SECOND)) if is_whole(SECOND[:end].encode(), SECOND.encode()) != (end in ends and end > last)]
    assert wrong == []


@pytest.mark.parametrize(
    ("content", "before", "whole"),
    [(SECOND, FIRST, True), (FIRST, None, True), (FIRST, SECOND, False), (None, FIRST, False), (None, None, True), ("[1]", FIRST, False)],
)
def test_a_file_is_whole_if_it_has_all_the_stages_that_it_had(content: str | None, before: str | None, whole: bool):
    assert is_whole(content and content.encode(), before and before.encode()) == whole


def ended_by(program: str, then: Callable[[], object] = lambda: None) -> None:
    """Watches a process that runs the program and then is killed."""
    program = f"import time; {program}; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as dvc:
        watching = threading.Thread(target=watch, args=(dvc.pid,))
        watching.start()
        assert dvc.stdout is not None
        dvc.stdout.readline()
        dvc.kill()
        then()
        watching.join(timeout=10)
        assert not watching.is_alive()
    assert not list(Path(".state").iterdir())


def writes(content: str) -> str:
    """A program that writes dvc.lock when it is watched."""
    return f"time.sleep(0.3); open('dvc.lock', 'w').write({content!r})"


def test_half_a_file_is_put_back(lock: Path):
    ended_by(writes(SECOND[:300]))
    assert lock.read_text() == FIRST


def test_a_whole_new_file_is_left_alone(lock: Path):
    ended_by(writes(SECOND))
    assert lock.read_text() == SECOND


def test_what_is_put_back_is_the_last_that_was_whole(lock: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock_guard, "SETTLED_SECONDS", 0.3)
    ended_by(f"{writes(SECOND)}; time.sleep(1.2); {writes('stages:')}")
    assert lock.read_text() == SECOND


def test_half_a_file_where_none_was_is_removed(lock: Path):
    lock.unlink()
    ended_by(writes("schema: ["))
    assert not lock.exists()


def test_half_a_file_that_another_dvc_is_writing_is_left_to_it(lock: Path):
    """The second finishes a moment after the first was killed."""
    finishing = threading.Timer(0.15, lambda: lock.write_text(SECOND))
    ended_by(writes("stages: ["), then=finishing.start)
    finishing.join()
    assert lock.read_text() == SECOND


def test_one_watches_for_a_process_and_nobody_for_one_that_is_gone(lock: Path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as dvc:
        watching = threading.Thread(target=watch, args=(dvc.pid,))
        watching.start()
        time.sleep(0.3)
        watch(dvc.pid)  # returns, since another one watches
        assert watching.is_alive()
        dvc.kill()
        watching.join(timeout=10)
    watch(dvc.pid)
    assert lock.read_text() == FIRST

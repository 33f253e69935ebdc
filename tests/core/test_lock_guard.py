"""dvc.lock after a dvc that was killed: whole, or put back."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import voluptuous
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from dvc.utils.serialize import YAMLFileCorruptedError, parse_yaml

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
      md5: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
      size: 1
    outs:
    - path: artifacts/reward
      hash: md5
      md5: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb.dir
      size: 2
"""
SECOND = FIRST.replace("aaaa", "cccc") + FIRST[FIRST.index("  reward:") :].replace("reward", "grpo")


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("dvc.lock")
    path.write_text(FIRST)
    return path


def readable(content: str) -> bool:
    """Whether DVC itself takes it for its lock file."""
    try:
        COMPILED_LOCKFILE_SCHEMA(parse_yaml(content, "dvc.lock"))
    except (YAMLFileCorruptedError, voluptuous.Invalid):
        return False
    return True


def test_what_dvc_cannot_read_is_no_whole_file():
    """Cut at any character: what passes here is what DVC reads, or goes without."""
    wrong = [end for end in range(len(SECOND)) if is_whole(SECOND[:end].encode()) and not readable(SECOND[:end])]
    assert wrong == []
    assert is_whole(SECOND.encode())
    assert is_whole(None)


OTHERS = ("path: s3://a/b\n      hash: md5\n      etag: aa", "path: a\n      files:\n      - relpath: b\n        md5: c", "path: a")


@pytest.mark.parametrize("item", OTHERS)
def test_files_that_have_no_md5_are_whole_too(item: str):
    assert is_whole(f"schema: '2.0'\nstages:\n  one:\n    cmd: two\n    deps:\n    - {item}\n".encode())


def test_stages_that_are_gone_are_no_sign_of_a_kill(lock: Path):
    """Another commit that was checked out as the run ended."""
    lock.write_text(SECOND)
    ended_by(writes(FIRST))
    assert lock.read_text() == FIRST


NOTES = {"write": {"reports/a.json": {"pid": 0, "cmd": "dvc repro"}}, "read": {"data": [{"pid": 0, "cmd": "dvc repro"}]}}


@pytest.mark.parametrize("content", [json.dumps(NOTES), json.dumps(NOTES)[:40], ""])
def test_what_a_killed_dvc_noted_of_itself_is_cleared_whole_or_not(lock: Path, content: str):
    """A part of it can be read by no dvc command, and what stays makes the file grow with every kill."""
    path = Path(".dvc/tmp/rwlock")
    path.parent.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    path.write_text(content.replace('"pid": 0', f'"pid": {gone.pid}'))
    ended_by(writes(FIRST))
    assert not path.exists()
    assert lock.read_text() == FIRST


def test_what_a_living_process_noted_stays(lock: Path):
    path = Path(".dvc/tmp/rwlock")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(NOTES).replace('"pid": 0', f'"pid": {os.getpid()}'))
    before = path.read_text()
    ended_by(writes(FIRST))
    assert path.read_text() == before


def test_where_dvc_has_noted_nothing_nothing_is_made(lock: Path):
    ended_by(writes(FIRST))
    assert not Path(".dvc").exists()


def ended_by(program: str) -> None:
    """Watches a process that runs the program and then is killed."""
    program = f"import time; input(); {program}; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as dvc:
        watching = threading.Thread(target=watch, args=(dvc.pid,))
        watching.start()
        assert dvc.stdin is not None
        assert dvc.stdout is not None
        while not list(Path(".state").glob("lock_guard.*")):
            time.sleep(0.01)
        dvc.stdin.write(b"go\n")
        dvc.stdin.flush()
        dvc.stdout.readline()
        dvc.kill()
        watching.join(timeout=10)
        assert not watching.is_alive()
    assert not list(Path(".state").iterdir())


def writes(content: str) -> str:
    """A program that writes dvc.lock when it is watched."""
    return f"time.sleep(0.1); file = open('dvc.lock', 'w'); file.write({content!r}); file.flush()"


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


def test_a_file_is_parsed_once_however_often_it_is_looked_at(lock: Path, monkeypatch: pytest.MonkeyPatch):
    """A run takes hours, and beside it nothing is to be busy."""
    parsed: list[bytes | None] = []
    is_whole = lock_guard.is_whole
    monkeypatch.setattr(lock_guard, "is_whole", lambda content: parsed.append(content) or is_whole(content))
    monkeypatch.setattr(lock_guard, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lock_guard, "SETTLED_SECONDS", 0.05)
    ended_by(f"{writes(SECOND)}; time.sleep(1)")
    assert parsed == [SECOND.encode()] * 2  # when it has settled, and when the process has ended


def test_half_a_file_where_none_was_is_removed(lock: Path):
    lock.unlink()
    ended_by(writes("schema: ["))
    assert not lock.exists()


def test_half_a_file_that_another_dvc_is_writing_is_left_to_it(lock: Path, monkeypatch: pytest.MonkeyPatch):
    """The second finishes while the one that watches waits for it."""
    monkeypatch.setattr(lock_guard.time, "sleep", lambda _: lock.write_text(SECOND))
    lock.write_text("stages: [")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as dvc:
        assert dvc.stdin is not None
        threading.Timer(0.3, dvc.stdin.close).start()
        watch(dvc.pid)
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

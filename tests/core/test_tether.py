import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel tells of a parent's end on Linux alone")

CHILD = """
import pathlib, signal, sys, time
from stages.core.tether import die_with_parent
die_with_parent(signal.{signal})
pathlib.Path(sys.argv[1]).write_text(str(__import__("os").getpid()))
time.sleep(60)
"""
PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]]); time.sleep({seconds})"


def gone(process: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path, name: str):
    noted = tmp_path / "child"
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(seconds=60), CHILD.format(signal=name), str(noted)])
    while not noted.exists() or not noted.read_text():
        time.sleep(0.02)
    child = int(noted.read_text())
    assert not gone(child, 0.3)
    parent.kill()
    parent.wait()
    assert gone(child, 5)


def test_a_parent_that_goes_before_it_is_asked_for_is_noticed(monkeypatch: pytest.MonkeyPatch):
    from stages.core import tether

    sent = []
    parents = iter([4321, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "kill", lambda process, signum: sent.append((process, signum)))
    tether.die_with_parent(signal.SIGCONT)  # one that does nothing, since this process keeps it
    assert sent == [(os.getpid(), signal.SIGCONT)]


def test_a_child_that_init_took_over_before_it_asked_is_noticed(monkeypatch: pytest.MonkeyPatch):
    from stages.core import tether

    sent = []
    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(os, "kill", lambda process, signum: sent.append(signum))
    monkeypatch.setattr(os, "getpgid", lambda process: os.getpgrp())
    tether.die_with_parent(signal.SIGCONT)
    assert sent == []  # the command of a container
    monkeypatch.setattr(os, "getpgid", lambda process: 1 if os.getpgrp() != 1 else 2)
    tether.die_with_parent(signal.SIGCONT)
    assert sent == [signal.SIGCONT]

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.versions import processes
from tests.core.test_tether import gone

pytestmark = pytest.mark.slow

GROUP = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path("noted").write_text(str(child.pid))
time.sleep(60)
"""
JOB = """
import os, sys
from pathlib import Path
from stages.versions import processes
processes.end_with_sweep()
processes.run_in_group([sys.executable, "-c", sys.argv[1]], Path.cwd(), dict(os.environ))
"""


def noted(folder: Path) -> int:
    """The process that was noted as soon as it is."""
    path = folder / "noted"
    while not path.exists() or not path.read_text():
        time.sleep(0.02)
    return int(path.read_text())


def test_a_command_gives_its_exit_code(tmp_path: Path):
    assert processes.run_in_group([sys.executable, "-c", "import sys; sys.exit(3)"], tmp_path, dict(os.environ)) == 3
    killed = "import os; os.kill(os.getpid(), 9)"
    assert processes.run_in_group([sys.executable, "-c", killed], tmp_path, dict(os.environ)) == -signal.SIGKILL


def test_what_breaks_it_off_kills_all_that_it_started(tmp_path: Path):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            processes.run_in_group([sys.executable, "-c", GROUP], tmp_path, dict(os.environ))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert gone(noted(tmp_path), 5)


@pytest.mark.parametrize("machine", [socket.gethostname(), "another"])
def test_a_job_ends_with_its_sweep_on_the_same_machine(tmp_path: Path, root: Path, machine: str):
    sweep = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    environment = {**os.environ, "PYTHONPATH": str(root), processes.SWEEP: f"{machine} {sweep.pid}"}
    job = subprocess.Popen([sys.executable, "-c", JOB, GROUP], cwd=tmp_path, env=environment)
    child = noted(tmp_path)
    sweep.kill()
    sweep.wait()
    here = machine == socket.gethostname()
    assert gone(child, 5 if here else 1) is here
    if here:
        assert job.wait(5) == 1
    else:
        os.killpg(os.getpgid(child), signal.SIGKILL)
        job.wait(5)

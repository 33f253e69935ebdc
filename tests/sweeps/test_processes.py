import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from stages.sweeps import processes, sweep
from stages.sweeps.sweep import Sweep
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
from stages.sweeps import processes, sweep
processes.end_with(sweep.of_this_job())
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


@pytest.mark.parametrize("seen", [True, False])
def test_a_job_ends_with_its_sweep_where_it_can_see_it(tmp_path: Path, root: Path, seen: bool):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = psutil.Process(process.pid).create_time()
    told = Sweep("s", "c", ("grpo.beta",), socket.gethostname() if seen else "another", process.pid, started)
    environment = {**os.environ, "PYTHONPATH": str(root), sweep.VARIABLE: json.dumps(told._asdict())}
    job = subprocess.Popen([sys.executable, "-c", JOB, GROUP], cwd=tmp_path, env=environment)
    child = noted(tmp_path)
    process.kill()
    process.wait()
    assert gone(child, 5 if seen else 1) is seen
    if seen:
        assert job.wait(5) == 1
    else:
        os.killpg(os.getpgid(child), signal.SIGKILL)
        job.wait(5)


def test_another_process_with_the_sweeps_number_is_not_it():
    here = sweep.start("c", ["grpo.beta"])
    assert processes._runs(here)
    assert not processes._runs(here._replace(process_started=here.process_started - 60))


def test_hydra_hands_the_sweep_to_each_job(monkeypatch: pytest.MonkeyPatch):
    here = sweep.start("c", ["grpo.beta"])
    parsed = OverridesParser.create().parse_override(sweep.override(here))
    assert parsed.get_key_element() == f"+hydra.job.env_set.{sweep.VARIABLE}"
    monkeypatch.setenv(sweep.VARIABLE, str(parsed.value()))
    assert sweep.of_this_job() == here

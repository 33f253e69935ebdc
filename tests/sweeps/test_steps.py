"""The process that runs DVC for a job, with a program in DVC's place where what DVC does is not the point."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.sweeps.steps import STEP_FAILED, Plan, Step, decode, encode
from tests.core.test_tether import gone

ROOT = Path(__file__).parents[2]
STAND_IN = """
import pathlib, sys, time
from stages.sweeps import steps
def dvc(arguments):
    print("doing", *arguments, flush=True)
    with open("done", "a") as done:
        done.write(arguments[0] + "\\n")
    time.sleep(0.3)
    if arguments[0] == "exits":
        raise SystemExit(7)
    return 1 if arguments[0] == "fails" else 0
sys.exit(steps.main(steps.decode(sys.argv[1]), dvc))
"""
LOCK = """schema: '2.0'
stages:
  base: {cmd: x, outs: [{path: artifacts/base, md5: aabase.dir}]}
  reward: {cmd: x, outs: [{path: artifacts/reward, md5: aareward.dir}, {path: reports/reward.json, md5: aareport}]}
  grpo: {cmd: x, outs: [{path: artifacts/grpo, md5: aagrpo.dir}]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a lock file, and the cache that has what it names."""
    (tmp_path / "dvc.lock").write_text(LOCK)
    (tmp_path / "cache/files/md5/aa").mkdir(parents=True)
    for name in ("base", "reward", "grpo"):
        (tmp_path / f"cache/files/md5/aa/{name}.dir").touch()
    return tmp_path


def start(folder: Path, *steps: Step, job: str = "job 0") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", STAND_IN, encode(Plan(job, os.getpid(), str(folder / "cache"), list(steps)))]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def done(folder: Path) -> list[str]:
    return (folder / "done").read_text().split() if (folder / "done").exists() else []


@pytest.mark.slow
def test_commands_run_one_after_another_until_one_fails_each_with_its_log(project: Path):
    steps = [Step([word, "x"], str(project / log / "dvc.log"), {}) for word, log in (("one", "a"), ("fails", "b"), ("three", "c"))]
    process = start(project, *steps)
    assert process.communicate() == ("", "")
    assert process.returncode == STEP_FAILED + 1
    assert done(project) == ["one", "fails"]
    assert (project / "a/dvc.log").read_text() == "$ dvc one x\ndoing one x\n"
    assert (project / "b/dvc.log").read_text() == "$ dvc fails x\ndoing fails x\n"
    process = start(project, steps[0], Step(["exits"], str(project / "d"), {}))
    process.communicate()
    assert process.returncode == STEP_FAILED + 1


@pytest.mark.slow
def test_what_several_share_is_run_by_the_first_and_left_out_by_the_others(project: Path):
    step = Step(["shared"], str(project / "log"), {stage: str(project / f"{stage}.lock") for stage in ("base", "reward")})
    processes = [start(project, step, job=f"job {number}") for number in range(3)]
    told = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert done(project) == ["shared"]
    waiting = sorted(line for text in told for line in text.splitlines())
    assert all(line.endswith(": waits for the stage base, which another job runs") for line in waiting)
    with_another = step._replace(locks={"base": step.locks["base"], "grpo": str(project / "grpo.lock")})  # one of them has not run
    start(project, with_another).communicate()
    assert done(project) == ["shared", "shared"]


@pytest.mark.slow
def test_what_the_cache_has_lost_since_is_run_again(project: Path):
    step = Step(["shared"], str(project / "log"), {stage: str(project / f"{stage}.lock") for stage in ("base", "reward")})
    start(project, step).communicate()
    assert json.loads((project / "reward.lock").read_text()) == ["aareward.dir"]
    (project / "cache/files/md5/aa/reward.dir").unlink()
    start(project, step).communicate()
    assert done(project) == ["shared", "shared"]


@pytest.mark.slow
def test_what_failed_is_run_again_by_the_next(project: Path):
    step = Step(["fails"], str(project / "log"), {"base": str(project / "base.lock")})
    for _ in range(2):
        process = start(project, step)
        process.communicate()
        assert process.returncode == STEP_FAILED
    assert done(project) == ["fails", "fails"]


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.15, 0.4])
def test_it_ends_with_its_parent_at_any_moment_of_its_start(tmp_path: Path, after: float):
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=tmp_path, check=True)
    (tmp_path / "dvc.yaml").write_text("stages: {one: {cmd: sleep 60}}")
    program = """
import os, subprocess, sys, time
from stages.sweeps import steps
plan = steps.encode(steps.Plan("job 0", os.getpid(), "cache", [steps.Step(["repro"], "log", {})]))
child = subprocess.Popen([sys.executable, "-m", "stages.sweeps.steps", plan], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(after)
        parent.send_signal(signal.SIGKILL)
    assert gone(child, 5)


def test_a_plan_survives_being_an_argument():
    step = Step(["repro"], "a log with a space", {"base": "x.lock"})
    plan = Plan("job 0: grpo.beta='1'", 7, "a cache", [step, step])
    assert decode(encode(plan)) == plan

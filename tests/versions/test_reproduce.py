"""The process that runs DVC for a job, with a program in DVC's place where what DVC does is not the point."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.versions import reproduce
from stages.versions.reproduce import STEP_FAILED, Step, encode

ROOT = Path(__file__).parents[2]
STAND_IN = """
import pathlib, sys, time
from stages.versions import reproduce
def dvc(arguments):
    print("doing", *arguments, flush=True)
    with open("done", "a") as done:
        done.write(arguments[0] + "\\n")
    time.sleep(0.3)
    if arguments[0] == "exits":
        raise SystemExit(7)
    return 1 if arguments[0] == "fails" else 0
reproduce.dvc = dvc
sys.exit(reproduce.main(sys.argv[1]))
"""


def start(folder: Path, *steps: Step) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", STAND_IN, encode(steps)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def done(folder: Path) -> list[str]:
    return (folder / "done").read_text().split() if (folder / "done").exists() else []


@pytest.mark.slow
def test_commands_run_one_after_another_until_one_fails_each_with_its_log(tmp_path: Path):
    steps = [
        Step([word, "x"], str(tmp_path / log / "dvc.log"), {}, "job 0") for word, log in (("one", "a"), ("fails", "b"), ("three", "c"))
    ]
    process = start(tmp_path, *steps)
    assert process.communicate() == ("", "")
    assert process.returncode == STEP_FAILED + 1
    assert done(tmp_path) == ["one", "fails"]
    assert (tmp_path / "a/dvc.log").read_text() == "$ dvc one x\ndoing one x\n"
    assert (tmp_path / "b/dvc.log").read_text() == "$ dvc fails x\ndoing fails x\n"
    process = start(tmp_path, steps[0], Step(["exits"], str(tmp_path / "d"), {}, "job 0"))
    process.communicate()
    assert process.returncode == STEP_FAILED + 1


@pytest.mark.slow
def test_what_several_share_is_run_by_the_first_and_left_out_by_the_others(tmp_path: Path):
    locks = {stage: str(tmp_path / f"{stage}.lock") for stage in ("base", "reward")}
    step = Step(["shared"], str(tmp_path / "log"), locks, "job {}")
    processes = [start(tmp_path, step._replace(job=f"job {number}")) for number in range(3)]
    told = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert done(tmp_path) == ["shared"]
    waiting = sorted(line for text in told for line in text.splitlines())
    assert all(line.endswith(": waits for the stage base, which another job runs") for line in waiting)
    process = start(tmp_path, step._replace(locks={"base": locks["base"], "grpo": str(tmp_path / "grpo.lock")}))  # one of them has not run
    process.communicate()
    assert done(tmp_path) == ["shared", "shared"]


@pytest.mark.slow
def test_what_failed_is_run_again_by_the_next(tmp_path: Path):
    step = Step(["fails"], str(tmp_path / "log"), {"base": str(tmp_path / "base.lock")}, "job 0")
    for _ in range(2):
        process = start(tmp_path, step)
        process.communicate()
        assert process.returncode == STEP_FAILED
    assert done(tmp_path) == ["fails", "fails"]


def test_a_plan_survives_being_an_argument():
    step = Step(["repro"], "a log with a space", {"base": "x.lock"}, "job 0: grpo.beta='1'")
    assert [Step(**fields) for fields in json.loads(encode([step]))] == [step]
    assert reproduce.__name__ == "stages.versions.reproduce"

"""Runs that are killed, stopped, or lose one of their processes, and then go on: to the bytes of a straight run."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import copy_project

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ends processes as Linux does")]

SETTINGS = ("base.fit_steps=0", "reward.epochs=12", "reward.accumulation=2", "reward.batch_size=1", "grpo.iterations=8", "grpo.group=3")
SETTINGS += (
    "data.prompts=data/examples/prompts.json",
    "data.pairs=data/examples/pairs.json",
    "grpo.accumulation=2",
    "grpo.max_new_tokens=16",
)
OUTPUTS = {
    "reward": ("artifacts/reward/reward.safetensors", "artifacts/reward/reward.json", "reports/reward.json", "reports/plots/reward.csv"),
    "grpo": ("artifacts/grpo/policy.safetensors", "artifacts/grpo/policy.json", "reports/grpo.json", "reports/plots/grpo.csv"),
}
TAKEN = re.compile(r"step (\d+)/(\d+) loss")
SECONDS = 120


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone that has run the pipeline as far as grpo; the digests of what a straight run writes are in `digests.json` beside it."""
    folder = tmp_path_factory.mktemp("resume") / "clone"
    copy_project(folder)
    compose(folder, *SETTINGS)
    done = dvc(folder, "repro", "grpo")
    assert done.returncode == 0, done.stderr
    (folder.parent / "digests.json").write_text(json.dumps({stage: digests(folder, stage) for stage in OUTPUTS}))
    return folder


def compose(folder: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "stages.compose", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def dvc(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def digests(folder: Path, stage: str) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in OUTPUTS[stage]}


def straight(project: Path, stage: str) -> dict[str, str]:
    return json.loads((project.parent / "digests.json").read_text())[stage]


def forget(project: Path, stage: str) -> None:
    """Takes the stage's last run out of dvc.lock, so that DVC runs it, as after a change."""
    lock = project / "dvc.lock"
    lock.write_text(re.sub(rf"(?ms)^  {stage}:\n.*?(?=^  \w+:\n|\Z)", "", lock.read_text()))


@contextlib.contextmanager
def running(project: Path, stage: str, log: Path, command: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """`dvc repro` of the stage, or another command, in a process group of its own; whatever is left of it is ended."""
    history = project / ".state" / stage / "history.jsonl"
    history.unlink(missing_ok=True)
    command = command or (sys.executable, "-m", "dvc", "repro", "--no-run-cache", stage)
    with log.open("wb") as stream, subprocess.Popen(command, cwd=project, stdout=stream, stderr=stream, start_new_session=True) as started:
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def wait_for_step(project: Path, stage: str, step: int, started: subprocess.Popen[bytes], log: Path) -> None:
    """Until the stage has taken so many steps; 0 is when it has begun."""
    history = project / ".state" / stage / "history.jsonl"
    end = time.monotonic() + SECONDS
    while not history.exists() or history.read_bytes().count(b"\n") < step:
        assert started.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.002)


def stage_process(project: Path, stage: str) -> psutil.Process:
    """The process that runs the stage, by its lock."""
    return psutil.Process(int((project / ".state" / f"{stage}.lock").read_text()))


def ranks_of(launcher: psutil.Process) -> list[psutil.Process]:
    """The processes that it has started to share the stage, in the order of their numbers."""
    found = {}
    for process in launcher.children():
        with contextlib.suppress(psutil.Error):  # the one that watches over dvc.lock may be gone
            if number := process.environ().get("RANK"):
                found[int(number)] = process
    return [found[number] for number in sorted(found)]


def end_of(process: psutil.Process | subprocess.Popen[bytes]) -> None:
    process.wait(timeout=60)


def steps(text: str) -> list[int]:
    """Those whose lines are in a log."""
    return [int(step) for step, _ in TAKEN.findall(text)]


def go_on(project: Path, stage: str) -> str:
    """Runs the stage again, holds it against the straight run, and gives what it said."""
    done = dvc(project, "repro", "--no-run-cache", stage)
    assert done.returncode == 0, done.stderr + done.stdout
    assert digests(project, stage) == straight(project, stage)
    left = [path.name for path in (project / ".state" / stage).iterdir()]
    assert left == ["history.jsonl"]
    every = [json.loads(line)["step"] for line in (project / ".state" / stage / "history.jsonl").read_text().splitlines()]
    assert every == list(range(1, max(every) + 1))
    return done.stderr


@pytest.mark.parametrize(
    ("stage", "step", "whom"),
    [
        ("reward", 1, "stage"),
        ("reward", 17, "group"),
        ("reward", 35, "dvc"),
        ("grpo", 2, "group"),
        ("grpo", 9, "stage"),
        ("grpo", 15, "dvc"),
    ],
)
def test_a_killed_run_goes_on_and_ends_with_the_bytes_of_one_that_was_not(project: Path, tmp_path: Path, stage: str, step: int, whom: str):
    forget(project, stage)
    log = tmp_path / "log"
    with running(project, stage, log) as started:
        wait_for_step(project, stage, step, started, log)
        process = stage_process(project, stage)
        if whom == "stage":
            process.kill()
        elif whom == "group":
            os.killpg(started.pid, signal.SIGKILL)
        else:
            started.kill()
        end_of(process)
        end_of(started)
    before = steps(log.read_text())
    said = go_on(project, stage)
    after = steps(said)
    assert len(set(before) & set(after)) <= 5  # runtime.checkpoint_every: a step may be told and not yet saved
    assert sorted({*before, *after}) == list(range(1, max(after) + 1))
    assert (f"resuming at step {after[0]}/{max(after)}: " in said) == (after[0] > 1)
    assert after[0] > 1 or step < 5


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stage_that_is_stopped_saves_its_state_and_says_so_in_one_line(project: Path, tmp_path: Path, signum: signal.Signals):
    """Ctrl-C in a terminal goes to dvc and the stage; here every step is taken once."""
    forget(project, "grpo")
    log = tmp_path / "log"
    with running(project, "grpo", log) as started:
        wait_for_step(project, "grpo", 3, started, log)
        process = stage_process(project, "grpo")
        if signum == signal.SIGINT:
            os.killpg(started.pid, signum)
        else:
            process.send_signal(signum)
        end_of(started)
    text = log.read_text()
    assert "Traceback" not in text
    before = steps(text)
    how = "interrupted" if signum == signal.SIGINT else "stopped by SIGTERM"
    assert f"grpo: {how}; the state after step {len(before)}/16 is saved: the same run goes on from it\n" in text
    assert steps(go_on(project, "grpo")) == list(range(len(before) + 1, 17))


def test_a_changed_setting_does_not_go_on_from_the_state_of_another_run(project: Path, tmp_path: Path):
    forget(project, "grpo")
    log = tmp_path / "log"
    with running(project, "grpo", log) as started:
        wait_for_step(project, "grpo", 6, started, log)
        stage_process(project, "grpo").kill()
        end_of(started)
    compose(project, "grpo.beta=0.05")
    done = dvc(project, "repro", "--no-run-cache", "grpo")
    assert done.returncode == 0
    assert "resuming" not in done.stderr
    assert steps(done.stderr) == list(range(1, 17))
    compose(project, "--drop", "grpo.beta")  # back to the run that was killed, whose state is still there
    assert "resuming at step 6/16: " in go_on(project, "grpo")


def test_a_second_run_in_the_folder_is_told_who_holds_it(project: Path, tmp_path: Path):
    """DVC's own lock is gone with a killed dvc; the stage's is not, as long as it lives."""
    forget(project, "grpo")
    log = tmp_path / "log"
    with running(project, "grpo", log, (sys.executable, "-m", "stages.grpo")) as started:
        wait_for_step(project, "grpo", 0, started, log)
        os.kill(started.pid, signal.SIGSTOP)
        second = subprocess.run([sys.executable, "-m", "stages.grpo"], cwd=project, capture_output=True, text=True, check=False)
        os.kill(started.pid, signal.SIGCONT)
        end_of(started)
    assert (second.returncode, second.stdout) == (1, "")
    waits, refusal = [line for line in second.stderr.splitlines() if line.startswith(".state/grpo.lock: ")]
    assert waits == f".state/grpo.lock: waits for process {started.pid}, which runs grpo here"
    assert refusal.startswith(f".state/grpo.lock: process {started.pid} runs grpo here; one run at a time is expected; ")
    assert digests(project, "grpo") == straight(project, "grpo")


@contextlib.contextmanager
def two_processes(project: Path) -> Iterator[None]:
    compose(project, "runtime.processes=2")
    try:
        yield
    finally:
        compose(project, "--drop", "runtime.processes")


def test_two_processes_write_what_one_writes_and_print_one_document(project: Path, tmp_path: Path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with two_processes(project):
        for stage in OUTPUTS:
            command = [sys.executable, "-m", f"stages.{stage}"]
            done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            document = json.loads(done.stdout)
            assert document["path"] == OUTPUTS[stage][0]
            assert document["report"] == json.loads((project / OUTPUTS[stage][2]).read_bytes())
            assert digests(project, stage) == straight(project, stage)
            lines = done.stderr.splitlines()
            assert lines[0] == "starting 2 processes"
            assert len(lines) == len(set(lines))  # one of them speaks
            assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")] == []


def test_a_process_that_dies_ends_all_and_another_number_of_them_goes_on(project: Path, tmp_path: Path):
    forget(project, "grpo")
    log = tmp_path / "log"
    with two_processes(project), running(project, "grpo", log) as started:
        wait_for_step(project, "grpo", 7, started, log)
        launcher = stage_process(project, "grpo").parent()
        assert launcher is not None
        first, second = ranks_of(launcher)
        second.kill()
        begun = time.monotonic()
        end_of(started)
        assert time.monotonic() - begun < 60
        assert started.returncode != 0
        assert not first.is_running()
    text = log.read_text()
    before = steps(text)
    assert f"grpo: process 1 of 2 was ended by SIGKILL, and the others were ended with it; the state after step {len(before)}/16" in text
    assert "Traceback" not in text
    assert steps(go_on(project, "grpo")) == list(range(len(before) + 1, 17))


@pytest.mark.parametrize("whom", [0, 1])
def test_a_process_that_dies_while_the_base_is_spread_ends_all_in_one_line(project: Path, tmp_path: Path, whom: int):
    """The others are in the midst of gathering a layer, or will be: torch tells of it in another way there."""
    log = tmp_path / "log"
    compose(project, "runtime.processes=2", "runtime.shard=true")
    try:
        with running(project, "grpo", log, (sys.executable, "-m", "stages.grpo")) as started:
            wait_for_step(project, "grpo", 6, started, log)
            ranks_of(psutil.Process(started.pid))[whom].kill()
            end_of(started)
        text = log.read_text()
        assert started.returncode == 1
        assert text.splitlines()[-1].startswith(f"grpo: process {whom} of 2 was ended by SIGKILL, and the others were ended with it")
        assert whom == 0 or "; the state after step " in text.splitlines()[-1]  # the first process has it
        assert "Traceback" not in text
    finally:
        compose(project, "--drop", "runtime.processes", "runtime.shard")
        for state in (project / ".state" / "grpo").glob("*/"):
            shutil.rmtree(state)


@pytest.mark.parametrize("whom", ["dvc", "launcher"])
def test_several_processes_end_with_the_one_that_started_them(project: Path, tmp_path: Path, whom: str):
    forget(project, "reward")
    log = tmp_path / "log"
    with two_processes(project), running(project, "reward", log) as started:
        wait_for_step(project, "reward", 3, started, log)
        launcher = stage_process(project, "reward").parent()
        assert launcher is not None
        several = ranks_of(launcher)
        assert len(several) == 2
        if whom == "dvc":
            started.kill()
        else:
            launcher.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs([launcher, *several], timeout=60)
        assert alive == []
        end_of(started)
    text = log.read_text()
    before = steps(text)
    assert f"reward: stopped by SIGTERM; the state after step {len(before)}/" in text, text
    assert "Traceback" not in text
    assert "torch" not in text
    assert steps(go_on(project, "reward"))[0] == len(before) + 1


def test_two_machines_in_one_folder_write_what_one_process_writes(project: Path):
    """Two launchers on one machine stand for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    compose(project, "runtime.nodes=2", f"runtime.rendezvous={endpoint}")
    try:
        pipe = subprocess.PIPE
        machines = [
            subprocess.Popen([sys.executable, "-m", "stages.grpo"], cwd=project, stdout=pipe, stderr=pipe, text=True) for _ in range(2)
        ]
        for machine in machines:
            stdout, stderr = machine.communicate(timeout=SECONDS)
            assert machine.returncode == 0, stderr
            assert json.loads(stdout)["path"] == OUTPUTS["grpo"][0]
    finally:
        for machine in machines:
            machine.kill()
            machine.communicate()
        compose(project, "--drop", "runtime.nodes", "runtime.rendezvous")
    assert digests(project, "grpo") == straight(project, "grpo")


def test_evaluate_measures_the_same_over_a_base_that_is_spread(project: Path):
    """What reward and grpo train over such a base is held against a whole one in tests/learning/test_ranks.py."""
    reports = {}
    for settings in (("runtime.processes=1", "runtime.shard=false"), ("runtime.processes=2", "runtime.shard=true")):
        compose(project, *settings, "evaluate.samples=1", "evaluate.bootstrap=20")
        done = subprocess.run([sys.executable, "-m", "stages.evaluate"], cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert ("layers by transformers' modules, since runtime.shard is on" in done.stderr) == (settings[1] == "runtime.shard=true")
        reports[settings] = json.loads(done.stdout)["report"]
        assert reports[settings] == json.loads((project / "reports/evaluate.json").read_bytes())
    compose(project, "--drop", "runtime.processes", "runtime.shard", "evaluate.samples", "evaluate.bootstrap")
    whole, spread = reports.values()
    numbers = [key for key, value in whole.items() if isinstance(value, float)]
    assert len(numbers) > 10
    assert {key: spread[key] for key in numbers} == pytest.approx({key: whole[key] for key in numbers}, abs=1e-4)


def test_what_a_process_refuses_is_told_once(project: Path):
    with two_processes(project):
        compose(project, "grpo.targets=nope")
        done = subprocess.run([sys.executable, "-m", "stages.grpo"], cwd=project, capture_output=True, text=True, check=False)
        compose(project, "--drop", "grpo.targets")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("grpo.targets: the model has no linear module nope in its layers; it has ")
    assert done.stderr.count("grpo.targets") == 1
    assert "Traceback" not in done.stderr


def test_what_settings_decide_has_its_exit_code_in_several_processes_too(project: Path):
    with two_processes(project):
        compose(project, "grpo.reward=length")
        params = project / "params.yaml"
        params.write_text(params.read_text().replace("reward: length", "reward: nope"))
        done = subprocess.run([sys.executable, "-m", "stages.grpo"], cwd=project, capture_output=True, text=True, check=False)
        compose(project, "--drop", "grpo.reward")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith('grpo.reward: reward source "nope" is neither the keyword length nor a file that exists')


def test_half_a_lock_file_of_a_killed_dvc_is_put_back(project: Path, tmp_path: Path):
    forget(project, "grpo")
    lock, log = project / "dvc.lock", tmp_path / "log"
    whole = lock.read_text()
    with running(project, "grpo", log) as started:
        wait_for_step(project, "grpo", 1, started, log)
        lock.write_text(whole[: len(whole) // 2] + "\n    - path")
        os.killpg(started.pid, signal.SIGKILL)
        end_of(started)
        end = time.monotonic() + SECONDS
        while lock.read_text() != whole:
            assert time.monotonic() < end
            time.sleep(0.05)
    go_on(project, "grpo")

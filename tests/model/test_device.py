"""The device and the threads of a stage."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stages.core.errors import DeviceError
from stages.core.settings.runtime import Runtime
from stages.model import device
from tests import tiny


@pytest.fixture(autouse=True)
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def runtime(name: str, threads: int | None) -> Runtime:
    return dataclasses.replace(tiny.RUNTIME, device=name, threads=threads)


def test_the_cpu_is_returned_and_null_threads_leave_torchs_own_choice(threads: int):
    assert device.prepare(runtime("cpu", None)) == torch.device("cpu")
    assert torch.get_num_threads() == threads


def test_the_number_of_threads_is_set():
    device.prepare(runtime("cpu", 3))
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("name", ["cuda:99", "mps", "meta", "cpu:x", "xpu", "hpu", "privateuseone", "vulkan"])
def test_a_device_that_this_machine_does_not_have_is_refused_in_one_line_that_names_the_key(name: str):
    with pytest.raises(DeviceError) as caught:
        device.prepare(runtime(name, None))
    (line,) = caught.value.lines()
    assert line.startswith(f"runtime.device: {name!r} cannot be used here (")
    assert line.endswith("; set runtime.device=cpu")


def test_more_threads_than_processors_are_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(device, "count_competing_threads", lambda: 0)
    available = device.processors()
    device.prepare(runtime("cpu", available))
    assert "lower it" not in capsys.readouterr().err
    device.prepare(runtime("cpu", available + 1))
    assert f"runtime.threads: {available + 1} threads on {available} CPUs take many times as long; lower it\n" in capsys.readouterr().err


def test_threads_that_others_compete_with_are_said_and_one_thread_never_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(device, "processors", lambda: 4)
    for threads, busy, warned in ((3, 1, False), (3, 2, True), (1, 9, False), (4, 0, False), (4, 1, True)):
        monkeypatch.setattr(device, "count_competing_threads", lambda busy=busy: busy)
        device.prepare(runtime("cpu", threads))
        line = f"runtime.threads: {threads} threads beside {busy} of other processes on 4 CPUs wait for each other"
        assert (line in capsys.readouterr().err) == warned


def test_the_threads_of_all_processes_that_share_a_stage_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(device, "processors", lambda: 4)
    monkeypatch.setattr(device, "count_competing_threads", lambda: 9)  # the others of the stage are among them
    for processes, threads, launched, warned in ((2, 3, True, True), (2, 2, True, False), (8, 1, True, True), (8, 3, False, False)):
        monkeypatch.setattr(device.rank, "launched_by", lambda launched=launched: 1 if launched else None)
        monkeypatch.setattr(device, "say", lambda line: sys.stderr.write(line + "\n"))
        device.set_threads(dataclasses.replace(runtime("cpu", threads), processes=processes))
        each = "1 thread" if threads == 1 else f"{threads} threads"
        line = f"runtime.threads: {processes} processes of {each} each on 4 CPUs take many times as long; lower it, or runtime.processes\n"
        assert (line in capsys.readouterr().err) == warned


@pytest.mark.skipif(not device.LOAD.exists(), reason="the system does not tell what computes")
def test_a_process_that_computes_is_counted():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            time.sleep(0.5)  # until it computes
            assert device.count_competing_threads() >= 1
        finally:
            other.kill()


@pytest.mark.parametrize("text", ["", "0.1 0.2 0.3", "0.1 0.2 0.3 x/9 7"])
def test_where_the_system_tells_nothing_nobody_is_counted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "LOAD", tmp_path / "loadavg")
    assert device.count_competing_threads() == 0
    device.LOAD.write_text(text)
    assert device.count_competing_threads() == 0


def test_what_computes_only_at_times_is_not_counted_and_our_own_threads_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(device, "THREADS", tmp_path / "task")
    for number, state in enumerate("RRS"):
        (tmp_path / "task" / str(number)).mkdir(parents=True)
        (tmp_path / "task" / str(number) / "stat").write_text(f"{number} (a name) R) {state} 1 2")
    at_times = iter([7, 4, 5, 9, 2, 2, 2, 2, 1, 1, 1, 1])
    monkeypatch.setattr(device.time, "sleep", lambda _: device.LOAD.write_text(f"0.0 0.0 0.0 {next(at_times, 0)}/90 7"))
    device.time.sleep(0)
    assert [device.count_competing_threads() for _ in range(3)] == [2, 0, 0]


def test_nobody_is_counted_where_this_process_has_cpus_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "processors", lambda: (os.cpu_count() or 1) + 1)
    monkeypatch.setattr(device, "LOAD", None)
    assert device.count_competing_threads() == 0

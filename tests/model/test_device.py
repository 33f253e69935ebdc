"""The device and the threads of a stage."""

import dataclasses
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


def test_more_threads_than_processors_are_said(capsys: pytest.CaptureFixture[str]):
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
        monkeypatch.setattr(device, "others", lambda busy=busy: busy)
        device.prepare(runtime("cpu", threads))
        line = f"runtime.threads: {threads} threads beside {busy} of other processes on 4 CPUs wait for each other"
        assert (line in capsys.readouterr().err) == warned


@pytest.mark.skipif(not device.LOAD.exists(), reason="the system does not tell what computes")
def test_a_process_that_computes_is_counted():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            time.sleep(0.5)  # until it computes
            assert device.others() >= 1
        finally:
            other.kill()


@pytest.mark.parametrize("text", ["", "0.1 0.2 0.3", "0.1 0.2 0.3 x/9 7"])
def test_where_the_system_tells_nothing_nobody_is_counted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "LOAD", tmp_path / "loadavg")
    assert device.others() == 0
    device.LOAD.write_text(text)
    assert device.others() == 0

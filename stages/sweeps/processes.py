"""Processes of a job that end with it, and a job that ends with its sweep, however that ended."""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from stages.sweeps.sweep import Sweep

_LOOK_SECONDS = 0.3

_groups: set[int] = set()
"""Process groups that this process has started, and that are still running."""


def run_in_group(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Runs the command in a process group of its own, and gives its exit code; whatever breaks it off kills all of the group."""
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    _groups.add(process.pid)
    try:
        return process.wait()
    finally:
        if process.returncode is None:
            _kill(process.pid)
            process.wait()
        _groups.discard(process.pid)


@functools.cache
def end_with(sweep: Sweep) -> None:
    """Has this process, and what it started, end when the sweep that it works for is gone: killed, a sweep could tell no one.

    It goes on watching between jobs, where a launcher keeps its processes. A sweep that cannot be seen from here, on another
    machine or in another container, is not watched; there the cluster's own commands end a job.
    """
    if sweep.machine == socket.gethostname() and sweep.process != os.getpid() and _runs(sweep):
        threading.Thread(target=_watch, args=(sweep,), daemon=True).start()


def _watch(sweep: Sweep) -> None:
    while _runs(sweep):
        time.sleep(_LOOK_SECONDS)
    for group in list(_groups):
        _kill(group)
    os._exit(1)


def _runs(sweep: Sweep) -> bool:
    try:
        process = psutil.Process(sweep.process)
        same = abs(process.create_time() - sweep.process_started) < 1
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)

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

SWEEP = "LEASH_SWEEP"
"""Environment variable with the machine and the process of the sweep that started a job."""
_LOOK_SECONDS = 0.3

_groups: set[int] = set()
"""Process groups that this process has started, and that are still running."""


def run_in_group(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Runs the command in a process group of its own, and gives its exit code; whatever breaks it off kills all of the group."""
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    _groups.add(process.pid)
    try:
        return process.wait()
    except BaseException:
        _kill(process.pid)
        process.wait()
        raise
    finally:
        _groups.discard(process.pid)


def name_sweep() -> None:
    """Tells the jobs that are started from here on, through the environment, which process they belong to."""
    os.environ[SWEEP] = f"{socket.gethostname()} {os.getpid()}"


@functools.cache
def end_with_sweep() -> None:
    """Has this process, and what it started, end when the sweep that it works for is gone: killed, a sweep could tell no one.

    It goes on watching between jobs, where a launcher keeps its processes. A sweep on another machine is not watched; there the
    cluster's own commands end a job.
    """
    machine, _, number = os.environ.get(SWEEP, "").partition(" ")
    if machine == socket.gethostname() and int(number) != os.getpid():
        threading.Thread(target=_watch, args=(int(number),), daemon=True).start()


def _watch(sweep: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(sweep)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_LOOK_SECONDS)
    for group in list(_groups):
        _kill(group)
    os._exit(1)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)

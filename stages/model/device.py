"""The device and the CPU threads that a stage computes with."""

import os
import time
from pathlib import Path

import torch

from stages.core import rank
from stages.core.errors import DeviceError
from stages.core.progress import say
from stages.core.settings.runtime import Runtime

LOAD, THREADS = Path("/proc/loadavg"), Path("/proc/self/task")
"""The fourth field of the one counts the system's threads that want a CPU at this moment; the other has a folder for each of ours."""
SAMPLES, SECONDS_BETWEEN = 4, 0.02
"""How often they are read: what computes wants a CPU every time."""


def processors() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_competing_threads() -> int:
    """Threads of other processes that keep computing; 0 where the system does not tell, or this process has CPUs of its own."""
    if processors() != os.cpu_count():
        return 0
    counts = []
    for _ in range(SAMPLES):
        try:
            wanting = int(LOAD.read_text(encoding="ascii").split()[3].split("/")[0])
            ours = sum((thread / "stat").read_text().rpartition(")")[2].split()[0] == "R" for thread in THREADS.iterdir())
        except (OSError, ValueError, IndexError):
            return 0
        counts.append(wanting - ours)
        time.sleep(SECONDS_BETWEEN)
    return max(0, min(counts))


def set_threads(runtime: Runtime) -> None:
    """Sets torch's CPU threads, null leaving torch's own choice, and warns where there are fewer CPUs than threads that want them."""
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
    processes = runtime.processes if rank.launched_by() is not None else 1
    threads, available = torch.get_num_threads() * processes, processors()
    each = threads // processes
    several = f"{processes} processes of {each} thread{'s' if each > 1 else ''} each" if processes > 1 else f"{threads} threads"
    if threads > available:
        lower = "it, or runtime.processes" if processes > 1 else "it"
        say(f"runtime.threads: {several} on {available} CPUs take many times as long; lower {lower}")
    elif processes == 1 and threads > 1 and threads + (busy := count_competing_threads()) > available:
        say(
            f"runtime.threads: {several} beside {busy} of other processes on {available} CPUs wait for each other and can take "
            "many times as long; lower it, or end the others"
        )


def prepare(runtime: Runtime) -> torch.device:
    """Sets the threads and returns the device; raises DeviceError where this machine does not have it."""
    set_threads(runtime)
    try:
        device = torch.device(runtime.device)
        if device.type == "cuda" and rank.launched_by() is not None:  # one of several processes, each with a device of its own
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        torch.zeros(1, device=device).cpu()  # there and back: the meta device holds no numbers
    except (RuntimeError, AssertionError, AttributeError, ImportError) as error:  # a build for the CPU alone lacks functions
        reason = str(error).splitlines()[0]
        raise DeviceError(f"runtime.device: {runtime.device!r} cannot be used here ({reason}); set runtime.device=cpu") from error
    say(f"computing on {device} with {torch.get_num_threads()} of {processors()} CPU threads (runtime.threads)")
    return device

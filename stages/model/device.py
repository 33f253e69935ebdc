"""The device and the CPU threads that a stage computes with."""

import os

import torch

from stages.core.errors import DeviceError
from stages.core.progress import say
from stages.core.settings.runtime import Runtime


def processors() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(runtime: Runtime) -> None:
    """Sets torch's CPU threads; null leaves torch's own choice."""
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
        if runtime.threads > processors():
            say(f"runtime.threads: {runtime.threads} threads on {processors()} CPUs take many times as long; lower it")


def prepare(runtime: Runtime) -> torch.device:
    """Sets the threads and returns the device; raises DeviceError where this machine does not have it."""
    set_threads(runtime)
    try:
        device = torch.device(runtime.device)
        torch.zeros(1, device=device).cpu()  # there and back: the meta device holds no numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise DeviceError(f"runtime.device: {runtime.device!r} cannot be used here ({reason}); set runtime.device=cpu") from error
    say(f"computing on {device} with {torch.get_num_threads()} of {processors()} CPU threads (runtime.threads)")
    return device

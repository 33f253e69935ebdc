"""A process that dies with the one that started it, so that nothing goes on writing which nobody waits for."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: signal.Signals) -> None:
    """Has the kernel send this process the signal when its parent is gone, however that ended; nothing where the system is not Linux."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it went before it could be asked for
        os.kill(os.getpid(), signum)

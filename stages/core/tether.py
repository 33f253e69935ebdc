"""A process that dies with the one that started it, so that nothing goes on writing which nobody waits for."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: signal.Signals, parent: int | None = None) -> None:
    """Has the kernel send this process the signal when its parent is gone, however that ended; nothing where the system is not Linux.

    Where `parent`, its process number, is known, one that is gone already is noticed too.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = parent or os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)

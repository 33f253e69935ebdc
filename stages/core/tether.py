"""A process that dies with the one that started it, so that nothing goes on writing which nobody waits for."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: signal.Signals, parent: int | None = None) -> None:
    """Has the kernel send this process the signal when its parent is gone, however that ended; nothing where the system is not Linux.

    Where `parent`, its process number, is known, one that is gone already is noticed too; where it is not, one whose children
    init has taken over.
    """
    if not sys.platform.startswith("linux"):
        return
    before = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)
    gone = os.getppid() != (parent or before)
    if gone or (parent is None and _is_orphan(before)):
        os.kill(os.getpid(), signum)


def _is_orphan(parent: int) -> bool:
    """Whether the parent is init, and not of this process's group, as the command of a container is."""
    return parent == 1 and os.getpgid(1) != os.getpgrp()

"""Signals that end a run, as an exception where it stands; but work that must not be left half done is done first."""

import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that end a run in one line."""

_held: list[int] = []
"""Signals that came while none was let through."""
_depth = 0
_again_every = 0.0
"""Seconds after which a signal that was raised is raised once more, and so on; 0 for never."""
_ending = False
"""Whether the run is ending, by a signal that was raised or by what `ends` was told of: those that come after it, while what
it ends is put in order, change nothing."""


class Stopped(SystemExit):
    """A signal that ends the process; its notes say what was kept. A SystemExit, so that nothing on the way takes it for an error."""

    def __init__(self, signum: int, again: bool = False) -> None:
        super().__init__(128 + signum)
        self.signum = signum
        self.again = again
        """Whether it had to be raised more than once; see `impatient`."""

    def how(self) -> str:
        """What happened, in words."""
        return describe(self.signum)


def describe(signum: int) -> str:
    """What a signal did, in words."""
    return "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"


def arrived(signum: int, _frame: object = None) -> None:
    """The handler: raises Stopped, once, or keeps the signal until the work that must be whole is."""
    if _depth:
        _held.append(signum)
    else:
        _stop(signum)


def listen(ending: bool = False) -> None:
    """Has the next signal raise Stopped; none where the run is ending already."""
    global _ending
    _ending = ending
    for signum in SIGNALS:
        signal.signal(signum, arrived)


def ends() -> None:
    """Says that the run is ending by something else, an error: a signal would take its place, and what it says would be lost."""
    global _ending
    _ending = True


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Runs the block whole: a signal that comes meanwhile is raised as Stopped when it is left."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _held and not _depth:
            signum = _held[0]
            _held.clear()
            _stop(signum)


@contextlib.contextmanager
def impatient(seconds: float) -> Iterator[None]:
    """Raises a signal that ends the block again every so many seconds until it is left: a library, on its way out, may wait for good.

    For the main thread, as all signals are.
    """
    global _again_every
    _again_every = seconds
    try:
        yield
    finally:
        _again_every = 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)


def _stop(signum: int) -> None:
    global _ending
    if not _ending:
        _ending = True
        if _again_every:
            signal.signal(signal.SIGALRM, lambda *_: _again(signum))
            signal.setitimer(signal.ITIMER_REAL, _again_every, _again_every)
        raise Stopped(signum)


def _again(signum: int) -> None:
    raise Stopped(signum, again=True)

"""Signals that end a run, as an exception where it stands; but work that must not be left half done is done first."""

import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that end a run in one line."""

_held: list[int] = []
"""Signals that came while none was let through."""
_depth = 0


class Stopped(SystemExit):
    """A signal that ends the process; its notes say what was kept."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum

    def how(self) -> str:
        """What happened, in words."""
        return describe(self.signum)


def describe(signum: int) -> str:
    """What a signal did, in words."""
    return "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"


def arrived(signum: int, _frame: object = None) -> None:
    """The handler: raises Stopped, or keeps the signal until the work that must be whole is."""
    if _depth:
        _held.append(signum)
    else:
        raise Stopped(signum)


def listen() -> None:
    """Has the signals raise Stopped from now on."""
    for signum in SIGNALS:
        signal.signal(signum, arrived)


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
            raise Stopped(signum)

"""Progress on stderr: lines in a log, a bar above which the lines scroll on a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

if not sys.stderr.isatty():
    # Read by tqdm when it is imported, so it reaches the bars of libraries too, which do not ask where they are drawn.
    os.environ.setdefault("TQDM_DISABLE", "1")

from tqdm import tqdm

from stages.core import rank


def say(line: str) -> None:
    """Writes one line to stderr, above a bar where one is shown; of several processes the first speaks."""
    if rank.number():
        return
    tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


@contextmanager
def bar(total: int, name: str, unit: str = "it") -> Iterator[Callable[..., object]]:
    """Shows a bar of `total` steps while the block runs, where stderr is a terminal.

    Gives what to call at each step, or with the number of steps done.
    """
    hidden = not sys.stderr.isatty() or rank.number() > 0
    with tqdm(total=total, desc=name, file=sys.stderr, disable=hidden, leave=False, unit=unit, unit_scale=unit != "it") as shown:
        yield shown.update

"""Progress on stderr: lines in a log, a bar above which the lines scroll on a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

if not sys.stderr.isatty():
    # Read by tqdm when it is imported, so it reaches the bars of libraries too, which do not ask where they are drawn.
    os.environ.setdefault("TQDM_DISABLE", "1")

from tqdm import tqdm


def say(line: str) -> None:
    """Writes one line to stderr, above a bar where one is shown."""
    tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


@contextmanager
def bar(total: int, name: str, unit: str = "it") -> Iterator[Callable[..., object]]:
    """Shows a bar of `total` steps while the block runs, where stderr is a terminal.

    Gives what to call at each step, or with the number of steps done.
    """
    hidden = not sys.stderr.isatty()
    with tqdm(total=total, desc=name, file=sys.stderr, disable=hidden, leave=False, unit=unit, unit_scale=unit != "it") as shown:
        yield shown.update

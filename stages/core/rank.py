"""Which of several processes of one stage this is. `learning/launch.py` starts them, through torchrun, which numbers them."""

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

LAUNCHER = "LEASH_LAUNCHER"
"""In the environment of a launched process: the process number of what launched it."""
ENDINGS = "LEASH_ENDINGS"
"""The same: the folder in which each process leaves how it ended; the launcher tells it, once for all."""

REFUSED, LOST, STOPPED = "refused", "lost", "stopped"
"""Kinds of endings: a refusal of its own, another process that was gone, a signal."""


class Ending(NamedTuple):
    """How a process ended that did not end well."""

    kind: str
    lines: list[str]
    notes: list[str]
    """What was kept."""
    code: int
    """Exit code."""


def launched_by() -> int | None:
    """The process that launched this one as one of several; None for a stage that runs alone, and for the launcher itself."""
    launcher = int(os.environ.get(LAUNCHER, 0))
    return launcher if launcher not in (0, os.getpid()) else None


def number() -> int:
    """The rank of this process, from 0; the first one writes and speaks for all."""
    return int(os.environ["RANK"]) if launched_by() else 0


def leave(ending: Ending) -> None:
    """Leaves it for the launcher, where that is still there to read it."""
    file = Path(os.environ[ENDINGS], os.environ["RANK"])
    with contextlib.suppress(OSError):
        file.with_suffix(".tmp").write_text(json.dumps(ending), encoding="utf-8")
        file.with_suffix(".tmp").replace(file)


def endings(folder: Path) -> dict[int, Ending]:
    """Those that processes left, by their ranks."""
    files = sorted((file for file in folder.iterdir() if file.name.isdecimal()), key=lambda file: int(file.name))
    return {int(file.name): Ending(*json.loads(file.read_text("utf-8"))) for file in files}

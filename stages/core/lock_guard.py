"""Watches over dvc.lock while DVC runs a stage, and puts it back where DVC was killed while it wrote it; and clears DVC's rwlock.

usage    python -m stages.core.lock_guard PROCESS, from the project's root; PROCESS is DVC's number

DVC writes dvc.lock in place, a fifth of a second for each stage: killed meanwhile, it leaves a part of a file, and no dvc command
runs any more. What is put back lacks the stage that was being written down; DVC has that in its run cache, and runs nothing twice.

DVC notes in .dvc/tmp/rwlock which process reads and writes what, in place as well. What a killed one noted stays there, so that
the file grows with every kill, and with it the time in which the next kill leaves a part that no dvc command can read.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from stages.core import atomic, layout, locks

LOOK_SECONDS = 0.2
SETTLED_SECONDS = 1.0
"""A content that stood as long as this while DVC was alive is one that it had written to the end."""
ANOTHER_WRITES_SECONDS = 0.4
"""How long a part of a file may be one that another dvc is writing at this moment."""


def start() -> None:
    """Has a process of its own watch until this one's parent, DVC, has ended; nothing where the system is not Linux."""
    started_elsewhere = Path(os.environ.get("DVC_ROOT", ".")).resolve() != Path.cwd()
    if not hasattr(os, "pidfd_open") or started_elsewhere:  # a job of a sweep, whose checkout is made anew
        return
    command = [sys.executable, "-m", "stages.core.lock_guard", str(os.getppid())]
    null = subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


class Seen(NamedTuple):
    """What dvc.lock held, None where it was not there, and since when."""

    content: bytes | None
    since: float


def watch(process: int, path: Path = layout.LOCK) -> None:
    """Returns when the process has ended, with dvc.lock whole. Only one watches for one process."""
    with locks.held_at_once(layout.STATE / f"lock_guard.{process}", passing=True) as alone, contextlib.suppress(ProcessLookupError):
        if not alone:
            return
        handle = os.pidfd_open(process)
        try:
            _watch(handle, path)
        finally:
            os.close(handle)


def _watch(handle: int, path: Path) -> None:
    seen = Seen(_read(path), 0.0)
    whole = seen.content  # DVC waits for the stage that has started this, and writes nothing
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    while not ended.poll(LOOK_SECONDS * 1000):
        now, content = time.monotonic(), _read(path)
        if content != seen.content:
            seen = Seen(content, now)
        elif content != whole and now - seen.since > SETTLED_SECONDS and is_whole(content):  # parsed once, not at each look
            whole = content
    if not is_whole(_read(path)):
        time.sleep(ANOTHER_WRITES_SECONDS)
        if not is_whole(_read(path)):
            _put_back(path, whole)
    clear_rwlock(path.parent / layout.RWLOCK)


def clear_rwlock(path: Path) -> None:
    """Removes DVC's notes of which process reads and writes what, where they cannot be read or no process that they name is alive.

    Under the lock that DVC itself holds while it writes them.
    """
    if not path.exists():
        return
    with contextlib.suppress(OSError), locks.held(path.with_name(f"{path.name}.lock")):
        content = _read(path)
        if content is not None and not any(map(psutil.pid_exists, _noted(content))):
            path.unlink()


def _noted(content: bytes) -> set[int]:
    """The processes that are named in it; none where it is but a part of a file."""
    try:
        notes = json.loads(content)
        readers = [reader for those in notes["read"].values() for reader in those]
        return {int(note["pid"]) for note in (*notes["write"].values(), *readers)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()


def is_whole(content: bytes | None) -> bool:
    """Whether DVC can read the file, or does without one: it was not cut where a value, a list or an entry had only begun.

    Cut between two entries it can; DVC then finds a stage changed, and looks for it in its run cache.
    """
    if content is None:
        return True
    try:
        stages = yaml.load(content, yaml.CSafeLoader)["stages"]
        files = [file for stage in stages.values() for kind in ("deps", "outs") for file in stage.get(kind, [])]
        begun = [value for part in (*stages.values(), *files) for value in part.values()]
        return content.endswith(b"\n") and None not in begun
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _put_back(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        atomic.write_bytes(path, content)


if __name__ == "__main__":
    watch(int(sys.argv[1]))

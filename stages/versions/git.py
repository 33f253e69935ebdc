"""Git, as a program: what it says, or in one line why it refused."""

import os
import subprocess
from pathlib import Path

from stages.core.errors import LeashError

HERE = Path()
_OF_ANOTHER_CALL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE")
"""What Git sets for a hook of its own, which would send a command in another folder to that repository."""


class GitError(LeashError):
    """A Git command that failed: the line says which, and what Git said of it."""


def git(*arguments: str, folder: Path = HERE, check: bool = True) -> str:
    """What the command wrote to stdout, without the final line break; "" where it failed and `check` is off. Raises GitError."""
    done = _run(arguments, folder)
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "replace").removesuffix("\n")
    if not check:
        return ""
    said = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in said if line.startswith(("error:", "fatal:"))] or said[-1:] or [f"exit code {done.returncode}"]
    raise GitError(f"git {' '.join(arguments)}: {'; '.join(told)}")


def git_bytes(*arguments: str, folder: Path = HERE) -> bytes | None:
    """What the command wrote to stdout, as it is; None where it failed. Raises GitError where there is no Git at all."""
    done = _run(arguments, folder)
    return done.stdout if done.returncode == 0 else None


def _run(arguments: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_CALL}
    try:
        # A session of its own: what kills a sweep's process group must not stop Git with a reference half written.
        return subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise GitError("git: the command is not there; install Git, and put it on the path") from error

"""Git, by its own command."""

import subprocess
from pathlib import Path

from stages.core.errors import LeashError


class GitError(LeashError):
    """A Git command that failed: see the line for which and what Git said."""


def git(*arguments: str, folder: Path = Path(), check: bool = True) -> str:
    """What the command writes to stdout, less its final newline; without `check` the empty text where it fails.

    Raises GitError with the command and the last line that Git wrote to stderr.
    """
    done = _run(arguments, folder)
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "replace").removesuffix("\n")
    if not check:
        return ""
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    raise GitError(f"git {' '.join(arguments)}: {said[-1] if said else f'it ended with code {done.returncode}'}")


def git_bytes(*arguments: str, folder: Path = Path()) -> bytes | None:
    """What the command writes to stdout, byte for byte; None where it fails."""
    done = _run(arguments, folder)
    return done.stdout if done.returncode == 0 else None


def _run(arguments: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise GitError("git: the command is not there; install Git, and put it on the path") from error

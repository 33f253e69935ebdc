"""What a version has of the pipeline's outputs, laid out as in the workspace: from DVC's cache, or else from a remote.

DVC reads the configuration of the version that it is asked for. A cache or a remote that only the present configuration
names would not be seen, so the present one is laid over it, with its paths resolved.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from dvc.config import Config
from dvc.exceptions import DvcException
from dvc.fs import GitFileSystem
from dvc.repo import Repo
from dvc.scm import SCM

from stages.core import layout
from stages.core.atomic import write_bytes
from stages.core.errors import LeashError, SettingsError
from stages.core.progress import say
from stages.versions.git import git
from stages.versions.revision import Revision


class MissingError(LeashError):
    """An output of a version that is not to be had: neither in the workspace or the cache, nor in a remote."""


@dataclass(frozen=True)
class Snapshot:
    """A version and the folder in which its outputs are put as they are asked for; the workspace has them already."""

    revision: Revision
    folder: Path
    repo: Repo | None = field(repr=False)
    """DVC's view of the version; None in the workspace."""

    @property
    def label(self) -> str:
        """The version, as messages name it."""
        return self.revision.label

    def output(self, path: Path) -> Path:
        """Where a file or folder that DVC keeps lies, fetched at its first use; raises MissingError with what to do."""
        place = self.folder / path
        if place.exists():
            return place
        if self.repo is None:
            raise MissingError(f"{path} of {self.label}: it is not there; dvc checkout {path} brings it back, or dvc repro makes it")
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:  # so that what breaks off is not taken for whole
            if not self._fetched(path, Path(scratch, "whole")):
                raise MissingError(f"{path} of {self.label}: dvc.lock does not have it there: its stage had not run, or was not there yet")
            place.parent.mkdir(parents=True, exist_ok=True)
            Path(scratch, "whole").rename(place)
        return place

    def tracked(self, path: Path) -> Path | None:
        """Where a file that Git tracks lies; None where the version has none."""
        content = self.revision.content(path)
        if self.repo is None or content is None:
            return path if content is not None else None
        place = self.folder / path
        write_bytes(place, content)
        return place

    def told(self, error: LeashError) -> list[str]:
        """What is wrong with files of this version, by their names in it."""
        prefix = f"{self.folder}/" if self.repo else ""
        return [f"{self.label}: {problem.replace(prefix, '') if prefix else problem}" for problem in error.problems]

    def _fetched(self, path: Path, target: Path) -> bool:
        """Puts an output at the target; false where the version has no such output. Raises MissingError."""
        assert self.repo is not None
        try:
            if not self.repo.dvcfs.exists(f"/{path.as_posix()}"):
                if not self._is_output(path):
                    return False
                raise FileNotFoundError("the folder that it is in is not there")
            self.repo.dvcfs.get(f"/{path.as_posix()}", str(target), recursive=True)
        except Exception as error:  # each kind of remote has errors of its own
            raise MissingError(
                f"{path} of {self.label}: neither in the cache nor in a remote ({_reason(error)}); dvc push --all-commits where it was "
                "made and dvc fetch --all-commits here bring it, or dvc repro at that version makes it anew"
            ) from error
        self._require_whole(path, target)
        return True

    def _is_output(self, path: Path) -> bool:
        """Whether dvc.lock names the path, or a folder that it is in."""
        lock = yaml.load(self.revision.content(layout.LOCK) or b"", yaml.CSafeLoader)
        stages = lock.get("stages") if isinstance(lock, dict) else None
        outs = [out["path"] for entry in (stages or {}).values() for out in entry.get("outs", [])] if isinstance(stages, dict) else []
        return any(part.as_posix() in outs for part in (path, *path.parents))

    def _require_whole(self, path: Path, target: Path) -> None:
        """Raises MissingError where what was fetched is not what dvc.lock names: a linked file that was edited damages the cache."""
        assert self.repo is not None
        for file in sorted(part for part in (target.rglob("*") if target.is_dir() else [target]) if part.is_file()):
            name = path / file.relative_to(target)
            expected = self.repo.dvcfs.info(f"/{name.as_posix()}").get("md5")
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, "md5").hexdigest()
            if expected is not None and found != expected:
                kept = f"files/md5/{expected[:2]}/{expected[2:]}"
                raise MissingError(
                    f"{name} of {self.label}: DVC's cache has it damaged ({kept} is not what dvc.lock names); remove that file there, "
                    "and dvc fetch or dvc repro brings it anew"
                )


@contextlib.contextmanager
def opened(revision: Revision) -> Iterator[Snapshot]:
    """The version's outputs, until the block is left; nothing is checked out, and what was fetched is removed."""
    if revision.commit is None:
        yield Snapshot(revision, Path(), None)
        return
    try:
        repo = _repo(revision.commit)
    except DvcException as error:
        raise SettingsError(f"{revision.label}: DVC cannot open it ({_reason(error)}); see .dvc/config, there and here") from error
    with tempfile.TemporaryDirectory(prefix="compare-") as folder, contextlib.closing(repo):
        say(f"reading {revision.label}")
        yield Snapshot(revision, Path(folder), repo)


def _repo(commit: str) -> Repo:
    top, inside = git("rev-parse", "--show-toplevel"), git("rev-parse", "--show-prefix")
    source = SCM(top)
    # Not Repo(rev=...), which takes the top of the Git repository for the project's root.
    return Repo(f"/{inside.rstrip('/')}", fs=GitFileSystem(scm=source, rev=commit), scm=source, config=Config(str(layout.DVC)).read())


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:100]

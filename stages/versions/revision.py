"""A version of the project by its name: a commit, a tag, a branch, an experiment, or the workspace as it is."""

import difflib
from dataclasses import dataclass
from pathlib import Path

from stages.core import layout
from stages.core.errors import SettingsError
from stages.versions import experiments
from stages.versions.git import git, git_bytes

WORKSPACE = "workspace"
SHORT = 7
"""Digits of a commit in a label."""


@dataclass(frozen=True)
class Revision:
    """A version of the project. Nothing is checked out to read it."""

    name: str
    """As it was asked for."""
    commit: str | None
    """The commit that Git resolves the name to; None is the workspace."""

    @property
    def label(self) -> str:
        """The name, with the first digits of the commit where the name is not that."""
        if self.commit is None or self.commit.startswith(self.name):
            return self.name[:SHORT] if self.commit else self.name
        return f"{self.name} ({self.commit[:SHORT]})"

    def content(self, path: Path) -> bytes | None:
        """A file that Git tracks, as this version has it; from disk in the workspace. None where there is none."""
        if self.commit is not None:
            return git_bytes("show", f"{self.commit}:./{path.as_posix()}")
        return path.read_bytes() if path.is_file() else None


def resolve(name: str) -> Revision:
    """The version of that name; raises SettingsError for a name that is none, or that has no pipeline in it."""
    if not git("rev-parse", "--show-toplevel", check=False):
        raise SettingsError("compare: this folder is in no Git repository; run it from the project's root")
    if name == WORKSPACE:
        revision = Revision(name, None)
    else:
        commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", check=False)
        revision = Revision(name, commit or _experiment(name))
    missing = [path.as_posix() for path in (layout.PIPELINE, layout.PARAMS) if revision.content(path) is None]
    if missing:
        raise SettingsError(
            f"{revision.label}: it has no {' and no '.join(missing)} here, so there is nothing to compare; "
            "name a version of this pipeline, from the folder that holds it"
        )
    return revision


def _experiment(name: str) -> str:
    """The commit of an experiment; where several have its name, of the one that starts from HEAD."""
    there = list(experiments.every())
    found = {experiment.start: experiment.commit for experiment in there if experiment.name == name}
    names = {experiment.name for experiment in there}
    if len(found) == 1:
        return next(iter(found.values()))
    head = git("rev-parse", "--verify", "--quiet", "HEAD", check=False)
    if head in found:
        return found[head]
    if found:
        starts = ", ".join(f"{commit[:SHORT]} (from {baseline[:SHORT]})" for baseline, commit in found.items())
        raise SettingsError(f"{name}: experiments of several commits have this name: {starts}; name one by its own commit")
    names.update(git("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes").splitlines())
    near = difflib.get_close_matches(name, [*sorted(names), WORKSPACE])
    meant = f"did you mean {' or '.join(near)}?" if near else "git log, git tag and dvc exp list -A name those that there are"
    raise SettingsError(f"{name}: expected a commit, a tag, a branch, an experiment or {WORKSPACE}, and it is none of them; {meant}")

"""DVC's experiments as Git keeps them: refs/exps/<2 digits>/<38 digits of the commit that they start from>/<name>."""

from collections.abc import Iterator
from typing import NamedTuple

from stages.versions.git import git

EXPERIMENTS = "refs/exps/"


class Experiment(NamedTuple):
    """An experiment: its name, its own commit, and the one that it starts from."""

    name: str
    commit: str
    start: str


def reference(start: str, name: str) -> str:
    """Where Git keeps the experiment of that name that starts from the commit."""
    return f"{EXPERIMENTS}{start[:2]}/{start[2:]}/{name}"


def commit(start: str, name: str) -> str:
    """The experiment's own commit; "" where there is none."""
    return git("rev-parse", "--quiet", "--verify", reference(start, name), check=False)


def every() -> Iterator[Experiment]:
    """All that there are."""
    for line in git("for-each-ref", "--format=%(objectname) %(refname)", EXPERIMENTS).splitlines():
        own, _, path = line.partition(" ")
        parts = path.removeprefix(EXPERIMENTS).split("/", 2)
        if len(parts) == 3 and len("".join(parts[:2])) == len(own):  # beside them DVC keeps what it is running
            yield Experiment(parts[2], own, "".join(parts[:2]))

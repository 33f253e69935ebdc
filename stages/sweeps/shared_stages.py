"""What dvc.yaml says of the stages: their order, and the sections of params.yaml that each one's outputs depend on."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from stages.core import layout
from stages.core.errors import SettingsError
from stages.core.params import read_yaml


class Stage(NamedTuple):
    """A stage, and all that it depends on over any number of steps."""

    name: str
    sections: frozenset[str]
    """Sections of params.yaml that it, or a stage before it, declares."""


def read(path: Path = layout.PIPELINE) -> list[Stage]:
    """The stages that declare settings, each after those that it depends on; `compose`, which makes params.yaml, is none of them."""
    try:
        entries: dict[str, Any] = read_yaml(path)["stages"]
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file; run this from the project's root") from None
    makers = {output: name for name, entry in entries.items() for output in _outputs(entry)}
    before = {name: {maker for path in entry.get("deps", []) if (maker := _maker(path, makers))} for name, entry in entries.items()}
    found: dict[str, Stage] = {}
    while len(found) < len(entries):
        ready = [name for name in entries if name not in found and before[name] <= set(found)]
        assert ready, "dvc.yaml's stages depend on each other in a ring, which DVC itself refuses"
        for name in ready:
            own = {section for section in entries[name].get("params", []) if isinstance(section, str)}
            found[name] = Stage(name, frozenset(own.union(*(found[earlier].sections for earlier in before[name]))))
    return [stage for stage in found.values() if stage.sections]


def shared(stages: Sequence[Stage], moved: Iterable[str]) -> list[list[Stage]]:
    """The stages that jobs may have in common, in runs that the same jobs share, where jobs differ in the sections `moved`.

    A stage that depends on all of those is the job's alone. The first run depends on none of them, so that all jobs share it.
    """
    sections = frozenset(moved)
    by_difference: dict[frozenset[str], list[Stage]] = {}
    for stage in stages:
        if not sections or not sections <= stage.sections:
            by_difference.setdefault(stage.sections & sections, []).append(stage)
    return [by_difference[difference] for difference in sorted(by_difference, key=len)]


def key(stage: Stage, commit: str, values: Mapping[str, Mapping[str, Any]]) -> str:
    """A short name of what the stage computes: the code's commit, and the settings that its outputs depend on."""
    depends_on = {section: values[section] for section in sorted(stage.sections)}
    return hashlib.sha256(json.dumps([commit, depends_on], sort_keys=True, default=str).encode()).hexdigest()[:16]


def _outputs(entry: Mapping[str, Any]) -> list[str]:
    listed = [item for kind in ("outs", "metrics", "plots") for item in entry.get(kind, [])]
    return [path for item in listed for path in ([item] if isinstance(item, str) else item)]


def _maker(path: str, makers: Mapping[str, str]) -> str | None:
    parts = [path, *(parent.as_posix() for parent in PurePath(path).parents)]
    return next((makers[part] for part in parts if part in makers), None)

"""Settings, and what was found of the base, that differ between two versions."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stages.core import layout
from stages.core.composition import params_yaml
from stages.core.composition.params_yaml import Unusable
from stages.core.errors import SettingsError
from stages.core.params import read_yaml
from stages.files.base_record import BaseRecord
from stages.versions.snapshot import Snapshot

RUNTIME = "runtime."


@dataclass(frozen=True)
class Change:
    """A dotted key whose value differs; a key that is not there counts as null."""

    key: str
    a: Any
    b: Any
    rounding_alone: bool
    """Whether it is of `runtime`, which changes numbers by rounding alone."""


def read(snapshot: Snapshot) -> dict[str, Any]:
    """The settings of a version by dotted key; raises SettingsError where params.yaml cannot be read."""
    path = snapshot.tracked(layout.PARAMS)
    assert path is not None, "a version without params.yaml does not resolve"
    stored = params_yaml.read(path)
    if isinstance(stored, Unusable):
        raise SettingsError(f"{stored.why}; expected the settings that compose writes")
    return {key: value if _is_json(value) else str(value) for key, value in stored.flat.items()}


def of_outputs(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """By stage, the settings that its outputs were made with, by dotted key, as dvc.lock has them; none without one.

    Raises SettingsError where it cannot be read.
    """
    path = snapshot.tracked(layout.LOCK)
    if path is None:
        return {}
    lock = read_yaml(path)
    stages = lock.get("stages") if isinstance(lock, dict) else None
    if not isinstance(stages, dict) or not all(isinstance(entry, dict) for entry in stages.values()):
        raise SettingsError(f"{path}: not a lock that DVC writes, so that no output can be found by it; bring it back from Git")
    of_stages = {name: (entry.get("params") or {}).get(layout.PARAMS.name) for name, entry in stages.items()}
    return {name: params_yaml.flatten(params) for name, params in of_stages.items() if isinstance(params, dict)}


def stale(settings: Mapping[str, Any], made_with: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, list[Change]]]:
    """The stages whose outputs were made with other settings than the version has, and those: then, and now."""
    for stage, params in made_with.items():
        sections = {key.partition(".")[0] for key in params}
        now = {key: value for key, value in settings.items() if key.partition(".")[0] in sections}
        moved = [change for change in changes(params, now) if not _same_number(change.a, change.b)]
        if moved:
            yield stage, moved


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    """The settings that differ, in the order of B's, then what is gone."""
    return [Change(key, pair["from"], pair["to"], key.startswith(RUNTIME)) for key, pair in params_yaml.changes(a, b).items()]


def base_changes(a: BaseRecord, b: BaseRecord) -> list[Change]:
    """The fields of base.json that differ."""
    pairs = params_yaml.changes(a.as_json(), b.as_json())
    return [Change(key, pair["from"], pair["to"], rounding_alone=False) for key, pair in pairs.items()]


def _same_number(written: object, number: object) -> bool:
    """DVC writes some numbers, such as 1e-06, in a way that YAML reads as a text."""
    try:
        return isinstance(written, str) and isinstance(number, float) and float(written) == number
    except ValueError:
        return False


def _is_json(value: object) -> bool:
    """Whether JSON can say it: YAML has dates, NaN and more besides, in files that were edited by hand."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True

"""Settings, and what was found of the base, that differ between two versions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stages.core import layout
from stages.core.composition import params_yaml
from stages.core.composition.params_yaml import Unusable
from stages.core.errors import SettingsError
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


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    """The settings that differ, in the order of B's, then what is gone."""
    return [Change(key, pair["from"], pair["to"], key.startswith(RUNTIME)) for key, pair in params_yaml.changes(a, b).items()]


def base_changes(a: BaseRecord, b: BaseRecord) -> list[Change]:
    """The fields of base.json that differ."""
    pairs = params_yaml.changes(a.as_json(), b.as_json())
    return [Change(key, pair["from"], pair["to"], rounding_alone=False) for key, pair in pairs.items()]


def _is_json(value: object) -> bool:
    """Whether JSON can say it: YAML has dates, NaN and more besides, in files that were edited by hand."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True

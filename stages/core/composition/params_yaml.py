"""params.yaml as composing writes it: one comment with the digest of the values below it, then the values.

The digest tells values that were edited by hand, or by `dvc exp run -S`, from those that were composed.
"""

import dataclasses
import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stages.core.composition.overrides import write
from stages.core.errors import SHOWN, SettingsError
from stages.core.params import COMPOSE, read_yaml
from stages.core.settings.schema import build_one_of, show
from stages.core.settings.sections import KEYS, SECTIONS

_HEADER = "# composed from conf/ by python -m stages.compose, not to be edited; sha256 of the values: "
_DIGEST = re.compile(re.escape(_HEADER) + r"([0-9a-f]{64})\n")


class Stored(NamedTuple):
    """A params.yaml that was read: its values as flat dotted keys, and whether they are those its first line speaks for."""

    flat: dict[str, Any]
    untouched: bool


class Unusable(NamedTuple):
    """A params.yaml that is not there, or cannot be read, and what is said of it."""

    why: str


def read(path: Path) -> Stored | Unusable:
    """What lies at the path."""
    try:
        values = read_yaml(path)
    except FileNotFoundError:
        return Unusable(f"{path}: there was no such file")
    except SettingsError as error:
        return Unusable(error.problems[0])
    if not isinstance(values, Mapping):
        return Unusable(f"{path}: it held no settings")
    header = _DIGEST.match(path.read_text("utf-8"))
    return Stored(flatten(_normal(values)), header is not None and header[1] == digest(values))


def render(values: Mapping[str, Any]) -> bytes:
    """The file for these values; the same values give the same bytes."""
    text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=1000)
    return f"{_HEADER}{digest(values)}\n{text}".encode()


def digest(values: Mapping[str, Any]) -> str:
    """The sha256 over keys and values, whatever their order, comments and layout."""
    return hashlib.sha256(json.dumps(sorted(flatten(values).items()), default=str).encode()).hexdigest()


def flatten(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves by dotted key; an empty mapping is a leaf."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The dotted keys whose values differ, in the order of `after`, then what is gone; a key that is not there counts as null."""
    differing = [key for key in [*after, *(key for key in before if key not in after)] if _differ(before, after, key)]
    return {key: {"from": before.get(key), "to": after.get(key)} for key in differing}


def edited(path: Path, stored: Stored, composed: Mapping[str, Any]) -> SettingsError:
    """The refusal of values that were not composed: which they are, and the call that would compose them."""
    differing = {
        key: pair
        for key, pair in changes(composed, stored.flat).items()
        if key in stored.flat or key.partition(".")[0] not in stored.flat  # a section that became one text is told of once
    }
    told = [f"{key} (found {_seen(stored.flat, key)}, composed {_seen(composed, key)})" for key in itertools.islice(differing, SHOWN)] + [
        f"{len(differing) - SHOWN} more"
    ] * (len(differing) > SHOWN)
    settable = {
        key: pair["to"]
        for key, pair in differing.items()
        if key in stored.flat and _is_plain(pair["to"]) and (key in KEYS or isinstance(pair["to"], str))
    }
    kept = [shlex.quote(write(key, value)) for key, value in settable.items() if key in KEYS or key in SECTIONS]
    keep = f"to keep this, run {COMPOSE} {' '.join(kept)}; " if kept else ""
    return SettingsError(
        f"{path}: edited after it was composed, by hand or by dvc exp run -S: {', '.join(told)}; "
        f"{keep}to discard it, remove {path} and run {COMPOSE}"
    )


def _is_plain(value: object) -> bool:
    """Whether an override can set it: YAML has dates, bytes and sets besides."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, str | int | float | None)


def _seen(flat: Mapping[str, Any], key: str) -> str:
    return show(flat[key]) if key in flat else "nothing"


def _differ(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> bool:
    return (key in before) != (key in after) or before.get(key) != after.get(key)


def _normal(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values as composing would write them, where a section can be read: `1e-06`, as DVC writes it, is a text to YAML."""
    normal = {str(name): section for name, section in values.items()}
    for name, classes in SECTIONS.items():
        built = build_one_of(classes, name, values.get(name))
        if not built.problems:
            normal[name] = dataclasses.asdict(built.value)
    return normal

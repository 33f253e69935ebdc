"""The overrides in force: the list in conf/overrides.yaml, how a call changes it, and how an override is read and written.

An override is text in Hydra's grammar. `+key` and `++key` are recorded as `key`: the keys are those of the schema, so there
is nothing to add that setting would not set.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from stages.core.errors import SettingsError
from stages.core.params import read_yaml
from stages.core.settings.schema import show

HEADER = "# What python -m stages.compose KEY=VALUE records: Hydra overrides on top of the groups beside this file.\n"

RESOLVER = re.compile(r"\$\{[^${}]*:")
"""The start of an interpolation that asks a resolver (environment, time, hydra) and not another key."""

_PREFIX = re.compile(r"\+{1,2}")


class Override(NamedTuple):
    """One override, read: `text` is how it is recorded, `value` what it sets."""

    key: str
    text: str
    value: Any


class Read(NamedTuple):
    """The overrides that could be read, and what is wrong with the others."""

    overrides: list[Override]
    problems: list[str]


def recorded(path: Path) -> list[str]:
    """The list in the file; none where there is no file. Raises SettingsError where it is not a list of texts."""
    try:
        values = read_yaml(path)
    except FileNotFoundError:
        return []
    found = values.get("overrides") if isinstance(values, dict) and set(values) == {"overrides"} else None
    if not isinstance(found, list):
        raise SettingsError(f"{path}: expected overrides: and a list such as [grpo.beta=0.1], found {show(values)}")
    odd = [f"{path}: expected texts such as grpo.beta=0.1, found {show(item)}" for item in found if not isinstance(item, str)]
    if odd:
        raise SettingsError(odd)
    return found


def render(texts: Sequence[str]) -> bytes:
    """The file that records these overrides."""
    return (HEADER + yaml.safe_dump({"overrides": list(texts)}, allow_unicode=True, width=1000)).encode()


def parse(texts: Iterable[str]) -> Read:
    """Reads each text by Hydra's own grammar: one key, one plain value; a key given twice is a problem too."""
    parser = OverridesParser.create()
    overrides: list[Override] = []
    problems: list[str] = []
    for text in texts:
        try:
            override = _parse(parser, text.strip())
        except SettingsError as error:
            problems += error.problems
            continue
        if override.key in {earlier.key for earlier in overrides}:
            problems.append(f"{override.key} is given twice: leave one of them out")
        else:
            overrides.append(override)
    return Read(overrides, problems)


def merge(active: Sequence[str], added: Sequence[Override]) -> list[str]:
    """The active texts with those added: in place where the key is active already, at the end where it is not."""
    new = {override.key: override.text for override in added}
    there = {key_of(text) for text in active}
    return [new.get(key_of(text), text) for text in active] + [text for key, text in new.items() if key not in there]


def drop(active: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The active texts without those of these keys; raises SettingsError for a key that is not active."""
    there = [key_of(text) for text in active]
    listed = ", ".join(there) or "none"
    absent = [f"{key} is not among the active overrides ({listed})" for key in keys if key not in there]
    if absent:
        raise SettingsError(absent)
    return [text for text in active if key_of(text) not in keys]


def key_of(text: str) -> str:
    """What an override's text sets, before it is known whether it is well formed."""
    return _PREFIX.sub("", text.partition("=")[0].strip(), count=1)


def write(key: str, value: Any) -> str:
    """The override that sets the key to the value, in Hydra's grammar."""
    return f"{key}={_element(value)}"


def _parse(parser: OverridesParser, text: str) -> Override:
    key = key_of(text) or "an override"
    try:
        parsed = parser.parse_override(text)
        sweep = parsed.is_sweep_override()
        value = None if sweep else parsed.value()
    except RecursionError as error:
        raise SettingsError(f"{key}: the value is nested too deeply; a list of plain values is expected") from error
    except (HydraException, ValueError) as error:
        deletes = text.startswith("~")
        wrong = "nothing can be left out; --drop takes an override back" if deletes else " ".join(str(error).split())
        raise SettingsError(f"{key}: expected KEY=VALUE in Hydra's grammar, found {show(text)}: {wrong}") from error
    if parsed.is_delete():
        raise SettingsError(f"{key}: nothing can be left out of the settings; --drop {key.lstrip('~')} takes an override back")
    if not parsed.key_or_group:
        raise SettingsError(f"{show(text)}: expected a key before the equals sign, as in grpo.beta=0.1")
    if parsed.package is not None:
        raise SettingsError(f"{key}: an option goes to the section of its own name; leave out @{parsed.package}")
    if re.match(r"hydra(?:[./]|$)", parsed.key_or_group):
        raise SettingsError(f"{key}: Hydra's own settings are not part of a composition; leave it out")
    if sweep:
        raise SettingsError(
            f"{key}: a run takes one value, found the choices {show(parsed.get_value_string())}; "
            "a decimal point is a dot, a list stands in brackets, a text with a comma in quotes"
        )
    if isinstance(value, dict):
        raise SettingsError(f"{key}: expected one value, found a mapping; set its keys one by one: {key}.KEY=VALUE")
    if RESOLVER.search(parsed.get_value_string()):
        raise SettingsError(f"{key}: {show(value)} would make settings depend on environment, time or Hydra; write the value itself")
    return Override(parsed.key_or_group, _PREFIX.sub("", text, count=1), value)


def _element(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(_element(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_element(key)}:{_element(item)}" for key, item in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, str):
        return repr(value)
    plain = re.fullmatch(r"[A-Za-z_./][\w./:-]*", value, re.ASCII) and value.lower() not in ("null", "true", "false", "inf", "nan")
    return value if plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

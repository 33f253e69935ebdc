"""What a stage reads: its own sections of params.yaml, and no others."""

import dataclasses
import typing
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from stages.core import layout
from stages.core.errors import SettingsError
from stages.core.settings.schema import build_one_of, show

P = TypeVar("P")

COMPOSE = "python -m stages.compose"


class _Loader(yaml.CSafeLoader):
    """PyYAML's safe loader, which keeps the last of two equal keys; this one refuses the second."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} stands here a second time", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """The file's YAML; raises SettingsError naming path and line where it cannot be read, FileNotFoundError where it is not there."""
    try:
        return yaml.load(path.read_text("utf-8"), _Loader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SettingsError(f"{path}{line}: {error.problem or 'this is not YAML'}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: this is not YAML in UTF-8 ({error})") from error
    except (yaml.YAMLError, ValueError) as error:  # the second: a date or a number that Python does not make
        raise SettingsError(f"{path}: a value in it cannot be read as YAML ({error})") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error


def load(cls: type[P], path: Path = layout.PARAMS) -> P:
    """The stage's `Params`: a frozen dataclass whose fields are named as sections and typed with their classes.

    Raises SettingsError with every problem of these sections; what else the file holds is not looked at.
    """
    try:
        values = read_yaml(path)
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file: run {COMPOSE}") from None
    except SettingsError as error:
        raise SettingsError([f"{problem}: run {COMPOSE}" for problem in error.problems]) from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected sections of settings, found {show(values)}: run {COMPOSE}")
    sections: dict[str, Any] = {}
    problems: list[str] = []
    for section, hint in typing.get_type_hints(cls).items():
        if section not in values:
            problems.append(f"{section} is missing from {path}: run {COMPOSE}")
            continue
        built = build_one_of(typing.get_args(hint) or (hint,), section, values[section])
        sections[section] = built.value
        problems += built.problems
    if problems:
        raise SettingsError(problems)
    assert {field.name for field in dataclasses.fields(typing.cast(Any, cls))} == set(sections)
    return cls(**sections)

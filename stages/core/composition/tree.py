"""Composing: overrides checked against the schema and the files in conf/, composed by Hydra, then checked as a whole.

The overrides are checked before Hydra sees them, and what it composed afterwards, key by key, so that everything that is
wrong is told at once. Hydra gets values as `++key=value`, so that a key can be set which a file in conf/ leaves out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stages.core import layout
from stages.core.composition import named_files
from stages.core.composition.overrides import RESOLVER, Override, parse
from stages.core.errors import SettingsError
from stages.core.params import read_yaml
from stages.core.settings.schema import MISSING, show, unknown_key
from stages.core.settings.sections import KEYS, SECTIONS, build_all

PRIMARY = "config"
EXPERIMENT = "experiment"
HYDRA = "hydra"
"""The folder of conf/ with Hydra's own options, which are no settings of a run."""


class Checked(NamedTuple):
    """The overrides that Hydra may see, as it gets them; what is wrong with the others; the groups whose choice was refused."""

    accepted: list[str]
    problems: list[str]
    refused_groups: set[str]


class Tree(NamedTuple):
    """What Hydra composed, interpolations resolved, and what could not be."""

    values: dict[str, Any]
    problems: list[str]


def composed(conf: Path, texts: Sequence[str], unread: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The settings that conf/ and these overrides give, by section.

    Raises SettingsError with everything that is wrong, `unread` first: problems of overrides that are not among the texts.
    """
    if not (conf / f"{PRIMARY}.yaml").is_file():
        raise SettingsError(f"{conf}/{PRIMARY}.yaml: there is no such file; run this from the project's root")
    read = parse(texts)
    checked = check(conf, read.overrides)
    try:
        require_mappings(conf)
        tree = _compose(conf, checked.accepted)
    except SettingsError as error:
        raise SettingsError([*unread, *read.problems, *checked.problems, *error.problems]) from error
    sections = build_all(tree.values)
    unresolved = {problem.partition(":")[0] for problem in tree.problems}
    # a key that could not be resolved has been told of; a base whose option was refused was to have other keys
    unsure = {group for group in checked.refused_groups if len(SECTIONS.get(group, ())) > 1}
    of_values = [
        problem
        for problem in [*sections.problems, *named_files.problems(tree.values)]
        if problem.partition(" is missing")[0] not in unresolved and problem.partition(".")[0] not in unsure
    ]
    problems = [*unread, *read.problems, *checked.problems, *tree.problems, *of_values]
    if problems:
        raise SettingsError(problems)
    return sections.values()


def require_mappings(conf: Path) -> None:
    """Raises SettingsError naming every file in conf/ that is not YAML or holds something other than settings."""
    problems: list[str] = []
    for path in sorted(set(conf.rglob("*.yaml")) - {conf / layout.OVERRIDES.name}):
        try:
            value = read_yaml(path)
        except SettingsError as error:
            problems += error.problems
        else:
            if value is not None and not isinstance(value, dict):
                problems.append(f"{path}: expected a mapping of settings, found {show(value)}")
    if problems:
        raise SettingsError(problems)


def check(conf: Path, overrides: Sequence[Override]) -> Checked:
    """Sorts the overrides: keys must be the schema's, options must be files in conf/."""
    accepted: list[str] = []
    problems: list[str] = []
    refused_groups: set[str] = set()
    groups = {path.name for path in conf.iterdir() if path.is_dir()} - {HYDRA}
    for override in overrides:
        if override.key in KEYS:
            accepted.append(f"++{override.text}")
        elif override.key in groups:
            wrong = _option(conf, override)
            if wrong is None:
                accepted.append(override.text if override.value is not None else f"~{override.key}")  # Hydra's word for none
            else:
                problems.append(wrong)
                refused_groups.add(override.key)
        else:
            problems.append(unknown_key(override.key, KEYS | groups))
    return Checked(accepted, problems, refused_groups)


def options(conf: Path, group: str) -> list[str]:
    """The options of a group: its files in conf/."""
    folder = conf / group
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def _option(conf: Path, override: Override) -> str | None:
    there = options(conf, override.key)
    if override.value in there or (override.value is None and override.key == EXPERIMENT):
        return None
    return f"{override.key}: {show(override.value)} is not an option of conf/{override.key}/; the options are {', '.join(there) or 'none'}"


def _compose(conf: Path, overrides: list[str]) -> Tree:
    around = GlobalHydra.instance().hydra  # that of a sweep, whose job composes within it
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf.resolve()), version_base="1.3"):
            config = compose(PRIMARY, overrides=overrides)
    except yaml.MarkedYAMLError as error:
        where = f"{error.problem_mark.name}:{error.problem_mark.line + 1}" if error.problem_mark else str(conf)
        raise SettingsError(f"{where.replace(str(conf.resolve()), str(conf))}: {error.problem or 'this is not YAML'}") from error
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        text = " ".join(str(error).split()).replace(str(conf.resolve()), str(conf))
        raise SettingsError(f"{conf}/{PRIMARY}.yaml: Hydra cannot compose it: {text}") from error
    except RecursionError as error:
        raise SettingsError(f"{conf}/: a value in it refers to itself through a YAML anchor; write the value out") from error
    finally:
        GlobalHydra.instance().hydra = around
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name in config:
        section = str(name)
        node = config._get_node(name)
        if section not in SECTIONS or not isinstance(node, DictConfig) or node._is_none() or node._is_missing():
            values[section] = None if OmegaConf.is_missing(config, name) else OmegaConf.to_container(config, resolve=False)[name]
            continue
        values[section] = {str(key): _resolved(f"{section}.{key}", node, key, problems) for key in node}
    return Tree(values, problems)


def _resolved(dotted: str, section: DictConfig, key: Any, problems: list[str]) -> Any:
    """The value of one key; where it cannot be resolved a problem is added, and the value counts as missing."""
    node = section._get_node(key)
    raw = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig | ListConfig) else node._value()
    if any(RESOLVER.search(text) for text in _texts(raw)):
        problems.append(f"{dotted}: {show(raw)} would make settings depend on environment, time or Hydra; write the value itself")
        return MISSING
    try:
        value = MISSING if OmegaConf.is_missing(section, key) else section[key]
        return OmegaConf.to_container(value, resolve=True) if isinstance(value, DictConfig | ListConfig) else value
    except (OmegaConfBaseException, ValueError) as error:
        problems.append(f"{dotted}: {show(raw)} cannot be resolved: {str(error).splitlines()[0]}")
        return MISSING


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []

"""The sections of params.yaml, in the order in which they are written, and the classes that each is read as."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from stages.core.settings.base import CheckpointBase, ToyBase
from stages.core.settings.data import Data
from stages.core.settings.evaluate import Evaluate
from stages.core.settings.export import Export
from stages.core.settings.grpo import Grpo
from stages.core.settings.reward import Reward
from stages.core.settings.runtime import Runtime
from stages.core.settings.schema import build_one_of, leaves, unknown_key
from stages.core.settings.sweep import Sweep

SECTIONS: dict[str, tuple[type[Any], ...]] = {
    "base": (ToyBase, CheckpointBase),
    "data": (Data,),
    "reward": (Reward,),
    "grpo": (Grpo,),
    "evaluate": (Evaluate,),
    "export": (Export,),
    "runtime": (Runtime,),
    "sweep": (Sweep,),
}

NOT_OF_A_STAGE = ("runtime", "sweep")
"""Sections that no stage declares: another value in them makes no other outputs."""

KEYS = frozenset(f"{section}.{key}" for section, classes in SECTIONS.items() for cls in classes for key in leaves(cls))
"""Every dotted key that can be set."""


class Sections(NamedTuple):
    """The sections that could be read, by name, and all that is wrong with the others."""

    built: dict[str, Any]
    problems: list[str]

    def values(self) -> dict[str, dict[str, Any]]:
        """The settings as params.yaml has them, keys in the order of their fields."""
        return {section: dataclasses.asdict(built) for section, built in self.built.items()}


def build_all(values: Mapping[str, Any]) -> Sections:
    """Reads every section; unknown sections and keys are problems too."""
    built: dict[str, Any] = {}
    problems = [unknown_key(str(name), KEYS) for name in values if name not in SECTIONS]
    for section, classes in SECTIONS.items():
        one = build_one_of(classes, section, values.get(section), KEYS)
        problems += one.problems
        if not one.problems:
            built[section] = one.value
    return Sections(built, problems)

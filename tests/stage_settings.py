"""What tests run stages with: the settings of conf/ and its recorded runs, on random weights, with what a test changes."""

import functools
from pathlib import Path
from typing import Any

import yaml

from stages import base, evaluate, export, grpo, reward, validate
from stages.core import layout
from stages.core.settings.sections import SECTIONS, build_all

CONF = Path(__file__).resolve().parents[1] / "conf"
STAGES = {"base": base, "validate": validate, "reward": reward, "grpo": grpo, "evaluate": evaluate, "export": export}
SMALL: dict[str, dict[str, Any]] = {
    "grpo": {"reward": layout.REWARD.as_posix(), "group": 2, "iterations": 1, "max_new_tokens": 6},
    "evaluate": {"samples": 2, "max_new_tokens": 6, "bootstrap": 200},
    "runtime": {"threads": 1},
}
"""Beside the recorded runs: short completions, scored by the reward model."""


def values(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every section as params.yaml would have it, small enough for a test of a second."""
    return {name: {**stated, **SMALL.get(name, {}), **changes.get(name, {})} for name, stated in _recorded().items()}


def params(stage: str, **changes: Any) -> Any:
    """The `Params` of a stage, with changes to its own section."""
    built = build_all(values(**{section(stage): changes}))
    assert built.problems == []
    settings = {section(stage): built.built[section(stage)]}
    return STAGES[stage].Params(**settings, **({} if stage == "validate" else {"runtime": built.built["runtime"]}))


def run(stage: str, **changes: Any) -> Any:
    """Runs a stage in the current folder and returns its document."""
    return STAGES[stage].main(params(stage, **changes))


@functools.cache
def _recorded() -> dict[str, dict[str, Any]]:
    recorded = yaml.safe_load((CONF / "experiment" / "recorded.yaml").read_text())
    files = {name: CONF / name / f"{'toy' if name == 'base' else 'default'}.yaml" for name in SECTIONS}
    return {name: {**yaml.safe_load(path.read_text()), **recorded.get(name, {})} for name, path in files.items()}


def section(stage: str) -> str:
    """The section that a stage reads."""
    return "data" if stage == "validate" else stage


def written(folder: Path = Path()) -> dict[str, bytes]:
    """Every file under artifacts/ and reports/ with its bytes."""
    roots = (folder / layout.ARTIFACTS, folder / layout.REPORTS)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for root in roots for path in sorted(root.rglob("*")) if path.is_file()}

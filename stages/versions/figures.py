"""The figures of two versions' reports: those that differ, and the ones that a comparison is asked for in any case."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stages.core import layout
from stages.core.errors import DataError
from stages.files.intake import strict_json
from stages.versions.snapshot import MissingError, Snapshot

REPORTS = ("validate", "reward", "grpo", "evaluate")
ALWAYS = {("evaluate", "accuracy"), ("evaluate", "reward_gain"), ("evaluate", "win_rate"), ("evaluate", "mean_kl")}
"""Shown also where they are equal."""
SECTIONS = {"validate": "data"}
"""The section that a report's stage reads, where it has another name."""

LARGEST = 1e300
"""Beyond it there is no difference of two numbers that is finite."""

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """A figure, with its 95% interval where the report has one."""

    value: Any
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Figure:
    """A figure of a report on both sides; null where a side has none."""

    report: str
    key: str
    a: Measured
    b: Measured
    difference: float | None
    """B minus A, where both are numbers."""


def read(snapshot: Snapshot, stage: str) -> Report:
    """A stage's report as a version has it; raises MissingError where it has none, DataError where it is no report."""
    path = layout.report(stage)
    content = snapshot.revision.content(path)
    if content is None:
        raise MissingError(f"{path} of {snapshot.label}: there is none; dvc repro {stage} writes it")
    try:
        report = strict_json.parse(content.decode())
    except ValueError as error:
        raise DataError(f"{path}: not a report: {error}; dvc repro writes it anew") from error
    if not isinstance(report, dict):
        raise DataError(f"{path}: not a report: expected an object; dvc repro writes it anew")
    return report


def differing(stage: str, a: Report | None, b: Report | None, settings: Mapping[str, Any]) -> list[Figure]:
    """Scalars that differ, in the order of B's report; those that are settings of the stage are left to the settings."""
    section = SECTIONS.get(stage, stage)
    figures = []
    flat_a, flat_b = (dict(_leaves(report or {})) for report in (a, b))
    for key in _keys(flat_a, flat_b):
        if f"{section}.{key}" in settings:
            continue
        both = _measured(flat_a, key), _measured(flat_b, key)
        if both[0] != both[1] or (stage, key) in ALWAYS:
            figures.append(Figure(stage, key, *both, difference(both[0].value, both[1].value)))
    return figures


def difference(a: Any, b: Any) -> float | None:
    """B minus A; None where either is no number."""
    return b - a if _is_number(a) and _is_number(b) else None


def _leaves(report: Report, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The report's entries, those of an object in it by dotted keys: of each of several rewards, say."""
    for key, value in report.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _keys(a: Report, b: Report) -> Iterator[str]:
    """Keys of scalars on either side, less the ends of the intervals of others."""
    for key in [*b, *(key for key in a if key not in b)]:
        whole = key.removesuffix("_low").removesuffix("_high")
        if (whole == key or (whole not in a and whole not in b)) and _is_scalar(a.get(key)) and _is_scalar(b.get(key)):
            yield key


def _measured(report: Report, key: str) -> Measured:
    low, high = (report.get(f"{key}_{end}") for end in ("low", "high"))
    return Measured(report.get(key), low if _is_number(low) else None, high if _is_number(high) else None)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST

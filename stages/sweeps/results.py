"""What became of the jobs of a sweep: a record in each job's folder, and the table at the end, best first."""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stages.core import layout
from stages.core.atomic import write_bytes
from stages.core.composition import overrides
from stages.core.errors import SettingsError
from stages.core.settings.sweep import MAXIMIZE
from stages.versions.git import git_bytes

RAN, REUSED, FAILED = "ran", "ran before", "failed"
EVALUATE = "evaluate"
RECORD = "job.json"
SUMMARY = "sweep.json"
LONG = 9
"""Characters from which on a number of the settings is shortened."""
WIDTH = 200
"""Columns of the table where it does not go to a terminal."""


class Outcome(NamedTuple):
    """What became of one job."""

    sweep: str
    """The sweep's own name; a folder may hold the records of several."""
    number: int
    overrides: list[str]
    """Its own; not those that are recorded for all."""
    status: str
    experiment: str | None = None
    figure: float | None = None
    low: float | None = None
    high: float | None = None
    seconds: float | None = None
    problem: str | None = None


class Figure(NamedTuple):
    """A figure of a report, with its interval where it has one; None where the report has null."""

    value: float | None
    low: float | None
    high: float | None


class Ranking(NamedTuple):
    """Where a sweep writes, and what its jobs are ranked by."""

    folder: Path
    metric: str
    direction: str


class SweepCallback(Callback):  # type: ignore[misc]  # Hydra has no types
    """Hydra calls it before any job starts; it keeps what the table at the end needs, which Hydra gives no one where a job failed."""

    ranking: Ranking | None = None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Keeps where the sweep writes, and what its jobs are ranked by."""
        SweepCallback.ranking = Ranking(Path(config.hydra.sweep.dir), config.sweep.metric, config.sweep.direction)


def report_of(metric: str) -> str:
    """The stage whose report holds the metric."""
    stage, dot, _ = metric.rpartition(".")
    return stage if dot else EVALUATE


def figures(report: Mapping[str, Any]) -> list[str]:
    """The names of what a report measured: its numbers, and nulls in their place."""
    return [name for name, value in report.items() if value is None or (isinstance(value, int | float) and not isinstance(value, bool))]


def figure(report: Mapping[str, Any], metric: str) -> Figure:
    """The metric as the report has it; raises SettingsError where it has no such figure."""
    name = metric.rpartition(".")[2]
    if name not in figures(report):
        raise SettingsError(
            f"sweep.metric: {layout.report(report_of(metric))} has no figure {name} here; it has {', '.join(figures(report))}"
        )
    return Figure(report[name], report.get(f"{name}_low"), report.get(f"{name}_high"))


def shown(metric: str, outcome: Outcome) -> str:
    """The figure in words, with its interval."""
    if outcome.figure is None:
        return f"{metric} null"
    return f"{metric} {outcome.figure:.4g} {_interval(outcome.low, outcome.high)}".rstrip()


def reason(log: str) -> str:
    """The line of DVC's log that says why it failed: the last one of the stage that failed to run, or else DVC's own."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("dvc.yaml: DVC removed")]
    last = next((number for number in reversed(range(len(lines))) if lines[number].startswith("ERROR: ")), None)
    if last is None:
        return lines[-1] if lines else "DVC said nothing"
    of_stage = "failed to run" in lines[last] and last > 0 and not lines[last - 1].startswith(("Running stage", "> "))
    return lines[last - 1] if of_stage else lines[last]


def write(folder: Path, outcome: Outcome) -> None:
    """Records what became of a job in its folder."""
    write_bytes(folder / RECORD, (json.dumps(outcome._asdict(), indent=2, ensure_ascii=False) + "\n").encode())


def read_all(folder: Path, sweep: str) -> list[Outcome]:
    """What became of the jobs of a sweep that have ended, by number."""
    found = [Outcome(**json.loads(path.read_bytes())) for path in folder.rglob(RECORD)]
    return sorted((outcome for outcome in found if outcome.sweep == sweep), key=lambda outcome: outcome.number)


def ranked(outcomes: Sequence[Outcome], direction: str) -> list[Outcome]:
    """Best first; those without a figure after them, those that failed last."""

    def place(outcome: Outcome) -> tuple[int, float]:
        if outcome.figure is None or not math.isfinite(outcome.figure):
            return (2 if outcome.status == FAILED else 1), 0.0
        return 0, -outcome.figure if direction == MAXIMIZE else outcome.figure

    return sorted(outcomes, key=place)


class Conclusion(NamedTuple):
    """How a sweep ended."""

    table: str
    """Empty where no job has ended."""
    problems: list[str]
    """Of the jobs that failed."""


def conclude(ranking: Ranking, sweep: str, commit: str) -> Conclusion:
    """The jobs of a sweep that have ended, best first, with the commit that they start from, as text; writes them to its folder too."""
    outcomes = ranked(read_all(ranking.folder, sweep), ranking.direction)
    if not outcomes:
        return Conclusion("", [])
    summary = {"metric": ranking.metric, "direction": ranking.direction, "commit": commit, "jobs": [one._asdict() for one in outcomes]}
    write_bytes(ranking.folder / SUMMARY, (json.dumps(summary, indent=2, ensure_ascii=False) + "\n").encode())
    console = Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=True)
    with console.capture() as captured:
        console.print(*_table(outcomes, ranking.metric, _baseline(ranking.metric, commit), commit), sep="\n")
    return Conclusion(captured.get().rstrip(), [outcome.problem for outcome in outcomes if outcome.problem])


def _baseline(metric: str, commit: str) -> Figure | None:
    """The figure of the commit itself, by the report that it holds."""
    content = git_bytes("show", f"{commit}:./{layout.report(report_of(metric))}")
    try:
        return figure(json.loads(content or b""), metric)
    except (ValueError, SettingsError):
        return None


def _table(outcomes: Sequence[Outcome], metric: str, baseline: Figure | None, commit: str) -> Iterator[Text | Table]:
    """What holds for all jobs, then a row per job: what it changed, a column for each key in which jobs differ, and its figure."""
    settings = {outcome.number: {overrides.key_of(text): text.partition("=")[2] for text in outcome.overrides} for outcome in outcomes}
    keys = list(dict.fromkeys(key for of_job in settings.values() for key in of_job))
    differing = [key for key in keys if len({of_job.get(key) for of_job in settings.values()}) > 1]
    if fixed := [f"{key}={settings[outcomes[0].number][key]}" for key in keys if key not in differing]:
        yield Text(f"all jobs: {' '.join(fixed)}")
    table = Table("job", *differing, metric, "95% interval", "experiment", "time", box=None)
    for outcome in outcomes:
        took = f"{outcome.seconds:.1f} s" if outcome.status == RAN and outcome.seconds is not None else outcome.status
        row = [str(outcome.number), *(_short(settings[outcome.number].get(key, "")) for key in differing)]
        row += ["" if outcome.figure is None else f"{outcome.figure:.4g}", _interval(outcome.low, outcome.high)]
        table.add_row(*map(Text, [*row, outcome.experiment or "", took]))
    if baseline is not None and baseline.value is not None:
        of_commit = [f"{baseline.value:.4g}", _interval(baseline.low, baseline.high), f"the commit, {commit[:7]}", ""]
        table.add_row(*map(Text, ["", *[""] * len(differing), *of_commit]))
    yield table
    best = outcomes[0]
    if best.figure is not None:
        if equal := [str(one.number) for one in outcomes[1:] if one.figure == best.figure]:
            yield Text(f"job {best.number} is equal to the last digit with {', '.join(equal)}")
        overlapping = [str(one.number) for one in outcomes[1:] if _overlap(best, one)]
        if overlapping:
            yield Text(
                f"the best one's interval overlaps with those of: {', '.join(overlapping)}; stages.compare holds two side by side, paired"
            )
        yield Text(f"next: python -m stages.compare {commit[:7]} {best.experiment}, or dvc exp apply {best.experiment}")


def _overlap(best: Outcome, other: Outcome) -> bool:
    if best.low is None or best.high is None or other.low is None or other.high is None:
        return False
    return best.low <= other.high and other.low <= best.high


def _short(value: str) -> str:
    """A setting as it is shown: of a number that was searched for, six digits."""
    try:
        return f"{float(value):.6g}" if len(value) > LONG else value
    except ValueError:
        return value


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:.4g}, {high:.4g}]"

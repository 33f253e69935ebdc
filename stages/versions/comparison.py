"""Everything in which two versions, A and B, differ, gathered; what is not to be had is named, and the rest compared all the same."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stages.core import layout, wording
from stages.core.errors import LeashError
from stages.core.settings.evaluate import MOST_RESAMPLES
from stages.core.settings.schema import MAX_SEED
from stages.files import artifacts, base_record
from stages.files.base_record import BaseRecord
from stages.versions import completions, figures, rows, settings, updates
from stages.versions.completions import Floats, Heldout, Interval
from stages.versions.figures import Figure
from stages.versions.rows import RowChange, Split
from stages.versions.settings import Change
from stages.versions.snapshot import MissingError, Snapshot
from stages.versions.updates import ArtifactChange, Kept

Bootstrap = Callable[[Floats, int, int], Interval]
"""Values [N], resamples and seed -> their mean with its 95% interval."""
ARTIFACTS = {"reward": (layout.REWARD, artifacts.REWARD), "policy": (layout.POLICY, artifacts.ADAPTER)}
DRAW_SETTINGS = tuple(f"evaluate.{key}" for key in ("seed", "temperature", "top_p", "max_new_tokens", "max_sequence"))
"""What a held-out prompt's draws depend on, beside the base and its place in the file."""

DRAW_FIELDS = ("precision", "chat_template")
"""What of the base they depend on that its fingerprint leaves out; rewards do too."""
STALE = 3
"""How many settings are named of a stage that was run with others."""

OTHER_BASE = "the bases are of different fingerprints, so that neither updates nor completions are of one model"

T = TypeVar("T")


@dataclass(frozen=True)
class Side:
    """One of the two versions."""

    name: str
    commit: str | None
    label: str


@dataclass(frozen=True)
class Comparison:
    """Two versions of the project side by side; a part that could not be compared is null, and `unavailable` says why."""

    a: Side
    b: Side
    unavailable: list[str]
    notes: list[str]
    settings: list[Change] | None
    base: list[Change] | None
    metrics: list[Figure]
    artifacts: list[ArtifactChange]
    rows: list[RowChange]
    heldout: Heldout | None
    fresh: list[Heldout]
    """Completions that were sampled for this comparison, by the reward model that scored them."""

    def as_json(self) -> dict[str, Any]:
        """The comparison as one object."""
        return dataclasses.asdict(self)

    def is_void(self) -> bool:
        """Whether nothing of the two could be compared."""
        return self.settings is None and self.base is None and not (self.metrics or self.artifacts or self.rows or self.heldout)

    def is_empty(self) -> bool:
        """Whether all could be compared, and nothing differs."""
        heldout = self.heldout
        return not (
            self.unavailable
            or self.settings
            or self.base
            or any(figure.a != figure.b for figure in self.metrics)
            or not all(change.identical for change in self.artifacts)
            or any(change.added or change.removed or change.moved for change in self.rows)
            or (heldout and (heldout.only_a or heldout.only_b or heldout.draws_apart or any(map(_differs, heldout.prompts))))
        )


@dataclass(frozen=True)
class Version:
    """What was read of a version; null where it could not be."""

    side: Side
    settings: Mapping[str, Any] | None
    made_with: Mapping[str, Mapping[str, Any]]
    """By stage, the settings that its outputs were made with."""
    base: BaseRecord | None
    reports: Mapping[str, figures.Report | None]
    artifacts: Mapping[str, Kept | None]
    rows: Mapping[str, Split | None]
    samples: list[dict[str, Any]] | None
    unavailable: list[str]


def read(snapshot: Snapshot) -> Version:
    """Everything of a version that a comparison needs."""
    unavailable: list[str] = []

    def attempt(reading: Callable[[], T]) -> T | None:
        try:
            return reading()
        except MissingError as error:
            unavailable.extend(error.problems)
        except LeashError as error:
            unavailable.extend(snapshot.told(error))
        return None

    return Version(
        side=Side(snapshot.revision.name, snapshot.revision.commit, snapshot.label),
        settings=attempt(lambda: settings.read(snapshot)),
        made_with=attempt(lambda: settings.of_outputs(snapshot)) or {},
        base=attempt(lambda: base_record.read_base(snapshot.output(layout.BASE_RECORD))),
        reports={stage: attempt(partial(figures.read, snapshot, stage)) for stage in figures.REPORTS},
        artifacts={name: attempt(partial(_artifact, snapshot, *kept)) for name, kept in ARTIFACTS.items()},
        rows={kind: attempt(partial(rows.read, snapshot, kind)) for kind in rows.FILES},
        samples=attempt(lambda: completions.read(_inside(snapshot, layout.SAMPLES))),
        unavailable=unavailable,
    )


def compare(a: Version, b: Version, bootstrap: Bootstrap) -> Comparison:
    """The two side by side, the held-out rewards with B's resamples and seed."""
    known = {**(a.settings or {}), **(b.settings or {})}
    both_rows = {kind: (a.rows[kind], b.rows[kind]) for kind in rows.FILES}
    both_artifacts = {name: (a.artifacts[name], b.artifacts[name]) for name in ARTIFACTS}
    other_base = a.base is not None and b.base is not None and a.base.fingerprint != b.base.fingerprint
    notes = [*_stale(a), *_stale(b), *[OTHER_BASE] * other_base]
    reason = _incomparable(*both_artifacts["reward"])
    notes += [f"rewards are of {reason}"] if reason else []
    heldout = None
    if a.samples is not None and b.samples is not None:
        scored_by = "each side's own reward model" if reason else "the reward model of both"
        heldout = completions.compare(a.samples, b.samples, scored_by, None if reason else averaging(b, bootstrap))
        notes += _other_draws(a, b)
    return Comparison(
        a=a.side,
        b=b.side,
        unavailable=list(dict.fromkeys([*a.unavailable, *b.unavailable])),
        notes=notes,
        settings=None if a.settings is None or b.settings is None else settings.changes(a.settings, b.settings),
        base=None if a.base is None or b.base is None else settings.base_changes(a.base, b.base),
        metrics=[one for stage in figures.REPORTS for one in figures.differing(stage, a.reports[stage], b.reports[stage], known)],
        artifacts=[updates.compare(name, one, other) for name, (one, other) in both_artifacts.items() if one and other],
        rows=[rows.compare(kind, one, other) for kind, (one, other) in both_rows.items() if one is not None and other is not None],
        heldout=heldout,
        fresh=[],
    )


def averaging(version: Version, bootstrap: Bootstrap) -> completions.Averaging:
    """The mean with its interval by a version's resamples and seed; without one where its settings have none."""
    resamples, seed = ((version.settings or {}).get(f"evaluate.{key}") for key in ("bootstrap", "seed"))

    def average(values: Floats) -> Interval:
        if type(resamples) is not int or type(seed) is not int or not (1 <= resamples <= MOST_RESAMPLES and 0 <= seed <= MAX_SEED):
            return float(values.mean()), None, None
        return bootstrap(values, resamples, seed)

    return average


def _artifact(snapshot: Snapshot, path: Path, kind: str) -> Kept:
    return updates.read(_inside(snapshot, path), kind)


def _inside(snapshot: Snapshot, path: Path) -> Path:
    """Where a file of a stage's folder lies: DVC keeps the folder."""
    return snapshot.output(path.parent) / path.name


def _incomparable(a: Kept | None, b: Kept | None) -> str | None:
    """Why the rewards of two versions cannot be compared; None where they can."""
    if a is None or b is None:
        return "reward models that are not both to be had, so that they are not compared"
    if not updates.same(a, b):
        return "two different reward models, and not comparable: neither the held-out rewards nor the gains"
    return None


def _stale(version: Version) -> Iterator[str]:
    """What a version shows that its settings would not make: they were changed, and `dvc repro` was not run."""
    for stage, moved in settings.stale(version.settings or {}, version.made_with):
        told = ", ".join(f"{change.key} {wording.value(change.a)} then, {wording.value(change.b)} now" for change in moved[:STALE])
        more = f" and {len(moved) - STALE} more" * (len(moved) > STALE)
        yield f"{version.side.label}: what {stage} made is of other settings ({told}{more}); dvc repro makes it anew"


def _other_draws(a: Version, b: Version) -> Iterator[str]:
    """In what the held-out draws of two versions are not the same ones."""
    changed = []
    if a.settings is not None and b.settings is not None:
        changed += [key for key in DRAW_SETTINGS if a.settings.get(key) != b.settings.get(key)]
    if a.base is not None and b.base is not None:
        changed += [f"base.{key}" for key in DRAW_FIELDS if getattr(a.base, key) != getattr(b.base, key)]
    if changed:
        yield f"held-out completions were not drawn alike: {', '.join(changed)} differ"
    prompts = [split and list(split[rows.HELDOUT].elements()) for split in (a.rows["prompts"], b.rows["prompts"])]
    if prompts[0] is not None and prompts[1] is not None and prompts[0] != prompts[1]:
        yield "the held-out prompts differ, and a prompt's draws go by its place among them: those that moved have other draws"


def _differs(prompt: completions.HeldoutPrompt) -> bool:
    return any((one.policy_a, one.reward_a, one.base_a) != (one.policy_b, one.reward_b, one.base_b) for one in prompt.draws)

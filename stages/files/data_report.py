"""What is told of the data: reports/validate.json, the lines on stderr, and what of all findings together refuses a file."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from stages.core.errors import DataError
from stages.core.progress import say
from stages.files import inspection
from stages.files.inspection import Finding, Words
from stages.files.intake.row_set import RowSet
from stages.files.intake.sets import trait_of
from stages.files.leakage import NEAR_DUPLICATE, NEAR_LEAKED, Divided
from stages.files.records import Pair


class Checked(NamedTuple):
    """One file as it was checked."""

    file: Divided
    found: RowSet[Any]
    findings: Sequence[Finding]
    words: Words
    near_duplicates: int
    """Of how many rows at most near duplicates were looked for."""

    @property
    def looked_at(self) -> int:
        """Of how many they were."""
        return min(self.near_duplicates, sum(map(len, self.file.split)))


def require_preferences(pairs: RowSet[Pair], kept: Sequence[int]) -> None:
    """Raises DataError where no pair is left that prefers one text to another."""
    if not kept:
        raise DataError(
            f"{pairs.place(0)}: pair set {trait_of(pairs.rows) or pairs.path} contains no pairs with differing sides, "
            f"in all {len(pairs.rows)} chosen and rejected are one text; at least one that differs is expected; add some"
        )


def require_lists(found: RowSet[Any], findings: Sequence[Finding], rows: int) -> None:
    """Raises DataError where every row holds messages that were written as a string: one of them may be meant so, all are not."""
    for finding in findings:
        if finding.key.startswith(inspection.STRINGIFIED) and finding.count == rows:
            raise DataError(
                f"{found.place(finding.first[0].row)}: every row holds a list of messages written as one string, as where a table without "
                "lists was saved; lists are expected; write them as JSONL or Parquet"
            )


def tell(checked: Checked) -> None:
    """Says how the file was read, what of it is not, how it is split, and what is suspect in it."""
    found, name, (train, heldout) = checked.found, checked.file.name, checked.file.split
    say(f"{found.path}: read as {found.format}, its texts as {found.texts}")
    for remark in found.remarks:
        say(f"{found.path}: {remark}")
    say(f"{name}: {len(train)} to train on, {len(heldout)} held out")
    if 0 < checked.looked_at < len(train) + len(heldout):
        rows = f"the first {checked.looked_at} of {len(train) + len(heldout)}"
        say(f"{name}: near duplicates were looked for among {rows} (data.near_duplicates)")
    for finding in checked.findings:
        if finding.count:
            say(finding.line(found.place))


def report(trait_name: str | None, heldout_fraction: float, prompts: Checked, pairs: Checked) -> dict[str, Any]:
    """The report; counts of near ones are null where they were not looked for."""
    files = (prompts, pairs)
    return {
        "trait_name": trait_name,
        **_sizes(prompts),
        **_sizes(pairs),
        "implicit_prompts": pairs.found.implicit_prompts,
        "heldout_fraction": heldout_fraction,
        **{f"{key}_{checked.file.name}": None for checked in files for key in (NEAR_DUPLICATE, NEAR_LEAKED)},
        **{finding.key: finding.count for checked in files for finding in checked.findings},
        "diversity": inspection.diversity([checked.words for checked in files]),
        "first_rows": {
            finding.key: finding.places(checked.found.place) for checked in files for finding in checked.findings if finding.count
        },
    }


def _sizes(checked: Checked) -> dict[str, Any]:
    name = checked.file.name
    train, heldout = map(len, checked.file.split)
    return {
        f"{name}_rows": len(checked.found.rows),
        name: train + heldout,
        f"train_{name}": train,
        f"heldout_{name}": heldout,
        f"{name}_format": checked.found.format,
        f"{name}_texts": checked.found.texts,
        f"near_looked_at_{name}": checked.looked_at,
    }

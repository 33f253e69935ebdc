"""Stage validate: check the prompts and pairs, count what is suspect in them, and hold some of them out.

reads    the files that data.prompts and data.pairs name
writes   artifacts/validate/{prompts,pairs}.{train,heldout}.jsonl, reports/validate.json
refuses  a file that is broken or empty, a set without a pair whose sides differ, a split that leaves nothing to train on
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.core import layout, runner
from stages.core.errors import DataError, SettingsError
from stages.core.progress import bar, say
from stages.core.runner import Document
from stages.core.settings.data import Data
from stages.files import inspection, leakage, outputs, records, splits
from stages.files.inspection import Finding, InspectedPairs
from stages.files.intake import sets
from stages.files.intake.sets import PairSet, PromptSet, RowSet
from stages.files.leakage import Divided


@dataclass(frozen=True)
class Params:
    """The sections that validate reads."""

    data: Data


def main(params: Params) -> Document:
    """Checks, counts, splits, writes; `prompts` and `pairs` in the report count the rows kept, training and held-out together."""
    data = params.data
    prompts, pairs = _read(data)
    with bar(len(prompts.rows) + len(pairs.rows), "inspecting") as advance:
        of_prompts = inspection.inspect_prompts(prompts.rows, advance)
        of_pairs = inspection.inspect_pairs(pairs.rows, advance)
    _require_preferences(pairs, of_pairs)
    _require_texts(prompts, of_prompts.findings, len(prompts.rows))
    _require_texts(pairs, of_pairs.findings, len(of_pairs.kept))
    prompt_rows = _divided("prompts", prompts, range(len(prompts.rows)), data)
    pair_rows = _divided("pairs", pairs, of_pairs.kept, data)
    prompt_findings, pair_findings = _compared([prompt_rows, pair_rows], data.near_duplicates)
    prompt_findings = of_prompts.findings + prompt_findings
    pair_findings = of_pairs.findings + pair_findings
    _tell(prompts, prompt_findings)
    _tell(pairs, pair_findings)
    report = {
        "trait_name": pairs.trait_name,
        **_sizes(prompts, prompt_rows, data.near_duplicates),
        **_sizes(pairs, pair_rows, data.near_duplicates),
        "implicit_prompts": pairs.implicit_prompts,
        "heldout_fraction": data.heldout_fraction,
        # null where near ones were not looked for
        **{f"{key}_{name}": None for name in ("prompts", "pairs") for key in (leakage.NEAR_DUPLICATE, leakage.NEAR_LEAKED)},
        **_counts(prompt_findings),
        **_counts(pair_findings),
        "diversity": inspection.diversity([of_prompts.words, of_pairs.words]),
        "first_rows": {**_first_rows(prompts, prompt_findings), **_first_rows(pairs, pair_findings)},
    }
    with bar(len(prompts.rows) + len(pairs.rows), "writing") as advance, outputs.together():
        for paths, file, write in (
            ((layout.TRAIN_PROMPTS, layout.HELDOUT_PROMPTS), prompt_rows, records.write_prompts),
            ((layout.TRAIN_PAIRS, layout.HELDOUT_PAIRS), pair_rows, records.write_pairs),
        ):
            for path, indexes in zip(paths, file.split, strict=True):
                write(path, _counted(file.rows, indexes, advance))
        outputs.write_json(layout.report("validate"), report)
    return Document(layout.VALIDATE, report)


def _read(data: Data) -> tuple[PromptSet, PairSet]:
    """Both files; raises SettingsError for those that are not there, DataError with the problems of both."""
    named = {"data.prompts": data.prompts, "data.pairs": data.pairs}
    absent = [key for key, path in named.items() if not Path(path).exists()]
    if absent:
        raise SettingsError([f"{key}: {named[key]} is not there; a file is expected; put it there or name another" for key in absent])
    columns = dataclasses.asdict(data.columns)
    problems: list[str] = []
    found: dict[str, Any] = {}
    for key, read in (("data.prompts", sets.read_prompts), ("data.pairs", sets.read_pairs)):
        try:
            found[key] = read(Path(named[key]), data.format, columns)
        except DataError as refused:
            problems += refused.problems
    if problems:
        raise DataError(problems)
    prompts, pairs = found.values()
    unused = [
        f"data.columns.{role}: neither file has a column {name}; a file's own name is expected; correct it, or set it to null"
        for role, name in columns.items()
        if name is not None and role not in prompts.mapped | pairs.mapped
    ]
    if unused:
        raise DataError(unused)
    return prompts, pairs


def _require_preferences(pairs: PairSet, inspected: InspectedPairs) -> None:
    """Raises DataError where no pair is left that prefers one text to another."""
    if not inspected.kept:
        raise DataError(
            f"{pairs.place(0)}: pair set {pairs.trait_name or pairs.path} contains no pairs with differing sides, "
            f"in all {len(pairs.rows)} chosen and rejected are one text; at least one that differs is expected; add some"
        )


def _require_texts(found: RowSet, findings: Sequence[Finding], rows: int) -> None:
    """Raises DataError where every row holds messages that were written as a string: one of them may be meant so, all are not."""
    for finding in findings:
        if finding.key.startswith(inspection.STRINGIFIED) and finding.count == rows:
            raise DataError(
                f"{found.place(finding.first[0].row)}: every row holds a list of messages written as one string, as where a table without "
                "lists was saved; lists are expected; write them as JSONL or Parquet"
            )


def _divided(name: str, found: RowSet, kept: Sequence[int], data: Data) -> Divided:
    """The rows on both sides, their numbers told; raises DataError where nothing is left to train on."""
    split = splits.split(found.rows, kept, data.heldout_fraction, data.seed)
    if not split.train:
        raise DataError(
            f"data.heldout_fraction: {data.heldout_fraction} holds out all {len(kept)} {name}, so there is nothing to train on; "
            "at least one must be left; lower it, or add rows"
        )
    say(f"{name}: {len(split.train)} to train on, {len(split.heldout)} held out")
    if data.heldout_fraction and not split.heldout:
        say(f"{name}: of so few rows the hash holds out none at {data.heldout_fraction}, so evaluate will have nulls; see data.seed")
    return Divided(name, found.rows, found.place, split)


def _compared(files: Sequence[Divided], most: int) -> list[list[Finding]]:
    """What the rows of each file have in common with others; where `most` is 0 no row is looked at for near ones."""
    findings = [[leakage.leaked(file, files)] for file in files]
    if most:
        for file in files:
            if most < (rows := len(file.split.train) + len(file.split.heldout)):
                say(f"{file.name}: near duplicates are looked for among the first {most} of {rows} (data.near_duplicates)")
        with bar(2 * sum(len(file.first(most)) for file in files), "near duplicates") as advance:
            near = [leakage.near_duplicates(file, most, advance) for file in files]
            for found, repeated, leaked in zip(findings, near, leakage.near_leaked(files, most, advance), strict=True):
                found += [repeated, leaked]
    return findings


def _tell(found: RowSet, findings: Sequence[Finding]) -> None:
    """Says how the file was read, what of it is not, and what is suspect in it."""
    say(f"{found.path}: read as {found.format}, its texts as {found.texts}")
    for remark in found.remarks:
        say(f"{found.path}: {remark}")
    for finding in findings:
        if finding.count:
            say(finding.line(found.place))


def _sizes(found: RowSet, file: Divided, most: int) -> dict[str, Any]:
    """How many rows there are, and how they were read."""
    train, heldout = map(len, file.split)
    return {
        f"{file.name}_rows": len(file.rows),
        file.name: train + heldout,
        f"train_{file.name}": train,
        f"heldout_{file.name}": heldout,
        f"{file.name}_format": found.format,
        f"{file.name}_texts": found.texts,
        f"near_looked_at_{file.name}": len(file.first(most)),
    }


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {finding.key: finding.count for finding in findings}


def _first_rows(found: RowSet, findings: Sequence[Finding]) -> dict[str, list[str]]:
    return {finding.key: finding.places(found.place) for finding in findings if finding.count}


def _counted(rows: Sequence[Any], indexes: Sequence[int], advance: Callable[[], object]) -> Iterator[Any]:
    for index in indexes:
        yield rows[index]
        advance()


if __name__ == "__main__":
    runner.run("validate", Params, main)

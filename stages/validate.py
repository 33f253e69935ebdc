"""Stage validate: check the prompts and pairs, count what is suspect in them, and hold some of them out.

reads    the files that data.prompts and data.pairs name
writes   artifacts/validate/{prompts,pairs}.{train,heldout}.jsonl, reports/validate.json
refuses  a file that is broken or empty, a set without a pair whose sides differ, a split that leaves nothing to train on
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stages.core import layout, runner
from stages.core.errors import DataError, SettingsError
from stages.core.progress import bar, say
from stages.core.runner import Document
from stages.core.settings.data import Data
from stages.files import data_report, inspection, leakage, outputs, records, splits
from stages.files.data_report import Checked
from stages.files.intake import sets
from stages.files.intake.row_set import PairSet, PromptSet, RowSet
from stages.files.leakage import Divided

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Params:
    """The sections that validate reads."""

    data: Data


def main(params: Params) -> Document:
    """Checks, splits, compares, and writes the rows of both sides and the report last and whole."""
    data = params.data
    prompts, pairs = _read(data)
    with bar(len(prompts.rows) + len(pairs.rows), "inspecting") as advance:
        of_prompts = inspection.inspect_prompts(prompts.rows, advance)
        of_pairs = inspection.inspect_pairs(pairs.rows, advance)
    data_report.require_preferences(pairs, of_pairs.kept)
    data_report.require_lists(prompts, of_prompts.findings, len(prompts.rows))
    data_report.require_lists(pairs, of_pairs.findings, len(of_pairs.kept))
    divided = [_divided("prompts", prompts, range(len(prompts.rows)), data), _divided("pairs", pairs, of_pairs.kept, data)]
    with bar(leakage.steps(divided, data.near_duplicates), "near duplicates") as advance:
        compared = leakage.compare(divided, data.near_duplicates, advance)
    checked = (
        Checked(divided[0], prompts, [*of_prompts.findings, *compared[0]], of_prompts.words, data.near_duplicates),
        Checked(divided[1], pairs, [*of_pairs.findings, *compared[1]], of_pairs.words, data.near_duplicates),
    )
    for file in checked:
        data_report.tell(file)
    report = data_report.report(sets.trait_of(pairs.rows), data.heldout_fraction, *checked)
    with bar(len(prompts.rows) + len(of_pairs.kept), "writing") as advance, outputs.together():
        (train_prompts, heldout_prompts), (train_pairs, heldout_pairs) = (file.split for file in divided)
        records.write_prompts(layout.TRAIN_PROMPTS, _at(train_prompts, prompts.rows, advance))
        records.write_prompts(layout.HELDOUT_PROMPTS, _at(heldout_prompts, prompts.rows, advance))
        records.write_pairs(layout.TRAIN_PAIRS, _at(train_pairs, pairs.rows, advance))
        records.write_pairs(layout.HELDOUT_PAIRS, _at(heldout_pairs, pairs.rows, advance))
        outputs.write_json(layout.report("validate"), report)
    return Document(layout.VALIDATE, report)


def _read(data: Data) -> tuple[PromptSet, PairSet]:
    """Both files; raises SettingsError for those that are not there, DataError with the problems of both."""
    named = {"data.prompts": data.prompts, "data.pairs": data.pairs}
    absent = [key for key, path in named.items() if not Path(path).exists()]
    if absent:
        raise SettingsError([f"{key}: {named[key]} is not there; a file is expected; put it there or name another" for key in absent])
    columns = dataclasses.asdict(data.columns)
    prompts, problems = _tried(sets.read_prompts, data.prompts, data.format, columns)
    pairs, more = _tried(sets.read_pairs, data.pairs, data.format, columns)
    if prompts is None or pairs is None:
        raise DataError([*problems, *more])
    unused = [
        f"data.columns.{role}: neither file has a column {name}; a file's own name is expected; correct it, or set it to null"
        for role, name in columns.items()
        if name is not None and role not in prompts.mapped | pairs.mapped
    ]
    if unused:
        raise DataError(unused)
    return prompts, pairs


def _tried(read: Callable[..., S], path: str, *arguments: object) -> tuple[S | None, Sequence[str]]:
    """What a file holds, or what is wrong with it."""
    try:
        return read(Path(path), *arguments), ()
    except DataError as refused:
        return None, refused.problems


def _divided(name: str, found: RowSet[Any], kept: Sequence[int], data: Data) -> Divided:
    """The rows on both sides; raises DataError where nothing is left to train on."""
    split = splits.split(found.rows, kept, data.heldout_fraction, data.seed)
    if not split.train:
        raise DataError(
            f"data.heldout_fraction: {data.heldout_fraction} holds out all {len(kept)} {name}, so there is nothing to train on; "
            "at least one must be left; lower it, or add rows"
        )
    if data.heldout_fraction and not split.heldout:
        say(f"{name}: of so few rows the hash holds out none at {data.heldout_fraction}, so evaluate will have nulls; see data.seed")
    return Divided(name, found.rows, found.place, split)


def _at(indexes: Sequence[int], rows: Sequence[T], advance: Callable[[], object]) -> Iterator[T]:
    for index in indexes:
        yield rows[index]
        advance()


if __name__ == "__main__":
    runner.run("validate", Params, main)

"""Stage validate: check the prompts and pairs, count what is suspect in them, and hold some of them out.

reads    the files that data.prompts and data.pairs name
writes   artifacts/validate/{prompts,pairs}.{train,heldout}.jsonl, reports/validate.json
refuses  a file that is broken or empty, a set without a pair whose sides differ, a split that leaves nothing to train on
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.core import layout, runner
from stages.core.errors import DataError, SettingsError
from stages.core.progress import say
from stages.core.runner import Document
from stages.core.settings.data import Data
from stages.files import inspection, outputs, records
from stages.files.records import PairSet, PromptSet
from stages.files.splits import Row, Split, split


@dataclass(frozen=True)
class Params:
    """The sections that validate reads."""

    data: Data


def main(params: Params) -> Document:
    """Checks, counts, splits, writes; `prompts` and `pairs` in the report count the rows kept, training and held-out together."""
    data = params.data
    prompts, pairs = _read(data)
    pairs, equal_sides = inspection.without_equal_sides(pairs)
    findings = [*inspection.prompt_findings(prompts), equal_sides, *inspection.pair_findings(pairs)]
    prompt_split = _split("prompts", prompts.prompts, data)
    pair_split = _split("pairs", pairs.pairs, data)
    for line in [*inspection.unread(prompts), *inspection.unread(pairs), *(finding.line() for finding in findings if finding.places)]:
        say(line)
    report = {
        "trait_name": pairs.trait_name,
        "prompts": len(prompts.prompts),
        "train_prompts": len(prompt_split.train),
        "heldout_prompts": len(prompt_split.heldout),
        "pairs": len(pairs.pairs),
        "train_pairs": len(pair_split.train),
        "heldout_pairs": len(pair_split.heldout),
        "heldout_fraction": data.heldout_fraction,
        "prompts_format": prompts.format,
        "pairs_format": pairs.format,
        **{finding.key: len(finding.places) for finding in findings},
        "diversity": inspection.diversity([*(row.prompt for row in prompts.prompts), *inspection.pair_texts(pairs)]),
    }
    with outputs.together():
        records.write_prompts(layout.TRAIN_PROMPTS, prompt_split.train)
        records.write_prompts(layout.HELDOUT_PROMPTS, prompt_split.heldout)
        records.write_pairs(layout.TRAIN_PAIRS, pair_split.train)
        records.write_pairs(layout.HELDOUT_PAIRS, pair_split.heldout)
        outputs.write_json(layout.report("validate"), report)
    return Document(layout.VALIDATE, report)


def _read(data: Data) -> tuple[PromptSet, PairSet]:
    """Both files; raises SettingsError for those that are not there, DataError with the problems of both."""
    named = {"data.prompts": data.prompts, "data.pairs": data.pairs}
    absent = [key for key, path in named.items() if not Path(path).exists()]
    if absent:
        raise SettingsError([f"{key}: {named[key]} is not there; a file is expected; put it there or name another" for key in absent])
    problems: list[str] = []
    try:
        prompts = records.read_prompts(Path(data.prompts))
    except DataError as refused:
        problems += refused.problems
    try:
        pairs = records.read_pairs(Path(data.pairs))
    except DataError as refused:
        problems += refused.problems
    if problems:
        raise DataError(problems)
    return prompts, pairs


def _split(name: str, rows: Sequence[Row], data: Data) -> Split[Row]:
    """Training and held-out rows, their numbers told; raises DataError where nothing is left to train on."""
    train, heldout = divided = split(rows, data.heldout_fraction, data.seed)
    if not train:
        raise DataError(
            f"data.heldout_fraction: {data.heldout_fraction} holds out all {len(rows)} {name}, so there is nothing to train on; "
            "at least one must be left; lower it, or add rows"
        )
    say(f"{name}: {len(train)} to train on, {len(heldout)} held out")
    return divided


if __name__ == "__main__":
    runner.run("validate", Params, main)

"""Which rows of a data set are trained on: rendered, measured against the limits, and told on stderr."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from stages.core.errors import DataError, TrainingError
from stages.core.progress import say
from stages.files.base_record import BaseRecord
from stages.files.records import Pair, Prompt
from stages.model.rendering import (
    LABELS_IN_TEXTS,
    MERGED_TOKENS,
    NOTES,
    OPENED_OTHERWISE,
    REWRITTEN_TEXTS,
    SPECIAL_STRINGS,
    TRANSCRIPTS,
    EncodedPair,
    Renderer,
)

NAMED = 5
"""How many skipped rows or unknown words a line names; the rest are counted."""

TRAIN = "train on"

MEANINGS = {
    SPECIAL_STRINGS: "hold strings of special tokens, encoded as text",
    LABELS_IN_TEXTS: "hold a turn's label, Human: or Assistant:, inside a text, which makes other turns of it",
    TRANSCRIPTS: "are conversations, written as Human: and Assistant: turns, since no chat template is applied",
    OPENED_OTHERWISE: "have a side that the template opens in another way than the generation marker, scored as the template writes it",
    MERGED_TOKENS: "have a side whose tokens would be others if it and the prompt were one text; they are encoded apart, as in sampling",
    REWRITTEN_TEXTS: "hold a text that the template leaves out or changes",
}
PROMPT_NOTES = (SPECIAL_STRINGS, LABELS_IN_TEXTS, REWRITTEN_TEXTS)
PAIR_NOTES = (*PROMPT_NOTES, OPENED_OTHERWISE, MERGED_TOKENS)
"""What the report counts by rows; that conversations are transcripts the chat_template says."""

R = TypeVar("R", Prompt, Pair)
E = TypeVar("E")


class FittingPrompts(NamedTuple):
    """The prompts that fit."""

    ids: list[list[int]]
    """Token ids of each [P]."""
    indexes: list[int]
    """Their places in the file."""
    skipped_long: int
    figures: Mapping[str, int]
    """What else the report says of the rows: their lengths in tokens, and what had to be noted in rendering them."""


class FittingPairs(NamedTuple):
    """The pairs that fit, and whose sides differ as rendered."""

    pairs: list[EncodedPair]
    indexes: list[int]
    """Their places in the file."""
    skipped_long: int
    figures: Mapping[str, int]
    """The same of pairs, with those whose sides are the same tokens."""


def fitting_prompts(section: str, prompts: Sequence[Prompt], renderer: Renderer, max_sequence: int, purpose: str = TRAIN) -> FittingPrompts:
    """Prompts of at most `max_sequence` tokens as rendered; raises TrainingError where there is none."""
    encoded, notes = _rendered("prompt", prompts, lambda row: renderer.prompt(row.prompt), renderer)
    kept, lengths = _kept(section, "prompt", dict(enumerate(map(len, encoded))), max_sequence, purpose)
    if kept:
        say(f"first prompt {renderer.shown(encoded[kept[0]])}")
    figures = {**lengths, **{key: notes[key] for key in PROMPT_NOTES}}
    return FittingPrompts([encoded[index] for index in kept], kept, len(encoded) - len(kept), figures)


def fitting_pairs(section: str, pairs: Sequence[Pair], renderer: Renderer, max_sequence: int, purpose: str = TRAIN) -> FittingPairs:
    """Pairs of which both whole sides have at most `max_sequence` tokens, and are not the same tokens.

    Raises TrainingError where there is none.
    """
    encoded, notes = _rendered("pair", pairs, renderer.pair, renderer)
    equal = [index for index, pair in enumerate(encoded) if pair.chosen == pair.rejected]
    if equal:
        say(f"dropped {len(equal)} pairs whose sides are the same tokens as rendered: {_named('pair', equal)}")
    if equal and len(equal) == len(encoded):
        raise TrainingError(
            f"artifacts/validate: every pair has sides that are the same tokens as rendered, so there is nothing to {purpose}; "
            "sides that differ in what the tokenizer and the template keep are expected; mend the data, or base.chat_template"
        )
    longest = {index: pair.longest for index, pair in enumerate(encoded) if pair.chosen != pair.rejected}
    kept, lengths = _kept(section, "pair", longest, max_sequence, purpose)
    if kept:
        say(f"first chosen {renderer.shown(encoded[kept[0]].chosen)}")
        say(f"first rejected {renderer.shown(encoded[kept[0]].rejected)}")
    figures = {"equal_tokens": len(equal), **lengths, **{key: notes[key] for key in PAIR_NOTES}}
    return FittingPairs([encoded[index] for index in kept], kept, len(longest) - len(kept), figures)


def require_positions(key: str, what: str, tokens: int, new_tokens: int, base: BaseRecord) -> None:
    """Raises TrainingError where a sequence would run beyond the model's positions, with the three numbers."""
    if base.positions is not None and tokens + new_tokens > base.positions:
        added = f" and {new_tokens} new ones" if new_tokens else ""
        raise TrainingError(
            f"{key}: {what} of {tokens} tokens{added} make {tokens + new_tokens}, beyond the model's {base.positions} positions; lower it"
        )


def say_unknown(renderer: Renderer) -> int:
    """Tells which words the tokenizer does not know; returns how many tokens they became."""
    total = renderer.encoder.unknown.total()
    if total:
        words = [f"{word} ({times})" for word, times in renderer.encoder.unknown.most_common(NAMED)]
        more = len(renderer.encoder.unknown) - len(words)
        of_all = f"{total} of {renderer.encoder.tokens} tokens ({total / renderer.encoder.tokens:.1%})"
        say(f"{of_all} are unknown to the tokenizer: {', '.join(words)}{f' and {more} more' if more else ''}")
    return total


def _rendered(what: str, rows: Sequence[R], render: Callable[[R], E], renderer: Renderer) -> tuple[list[E], dict[str, int]]:
    """Every row rendered, and how many rows each note was called for in; those that were are told with the first rows."""
    found: list[E] = []
    noted: dict[str, list[int]] = {key: [] for key in NOTES}
    before, special = renderer.notes.copy(), renderer.special.copy()
    for index, row in enumerate(rows):
        try:
            found.append(render(row))
        except DataError as error:
            raise DataError([f"{problem} ({what} {index})" for problem in error.problems]) from error
        if renderer.notes != before:
            for key in NOTES:
                if renderer.notes[key] > before[key]:
                    noted[key].append(index)
            before = renderer.notes.copy()
    for key, indexes in noted.items():
        if indexes:
            strings = f" ({', '.join(sorted(renderer.special - special))})" if key == SPECIAL_STRINGS else ""
            say(f"{len(indexes)} {what}s {MEANINGS[key]}{strings}: {_named(what, indexes)}")
    return found, {key: len(indexes) for key, indexes in noted.items()}


def _named(what: str, indexes: Sequence[int]) -> str:
    """The first of these rows, and how many more there are."""
    named = ", ".join(str(index) for index in indexes[:NAMED])
    return f"{what} {named}" + (f" and {len(indexes) - NAMED} more" if len(indexes) > NAMED else "")


def _kept(section: str, what: str, lengths: Mapping[int, int], max_sequence: int, purpose: str) -> tuple[list[int], dict[str, int]]:
    """Indexes of the rows within the limit, and figures of the lengths of all; raises TrainingError where all rows are beyond it.

    A pair's length is its longer side's.
    """
    kept = [index for index, length in lengths.items() if length <= max_sequence]
    skipped = [index for index, length in lengths.items() if length > max_sequence]
    if skipped:
        longest = max(lengths[index] for index in skipped)
        say(f"skipped {len(skipped)} {what}s longer than max_sequence {max_sequence}, of up to {longest} tokens: {_named(what, skipped)}")
    if skipped and not kept:
        raise TrainingError(
            f"{section}.max_sequence: every {what} is longer than the sequence limit, so there is nothing to {purpose} "
            f"(the shortest has {min(lengths.values())} tokens, the limit is {max_sequence})"
        )
    if kept:
        ranked = sorted(lengths[index] for index in kept)
        say(f"{len(ranked)} {what}s of {ranked[0]} to {ranked[-1]} tokens, median {ranked[len(ranked) // 2]}")
    every = sorted(lengths.values())
    if not every:
        return kept, {}
    return kept, {"shortest_tokens": every[0], "median_tokens": every[len(every) // 2], "longest_tokens": every[-1]}

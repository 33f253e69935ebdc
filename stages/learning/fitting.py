"""Which rows of a data set are trained on: rendered, measured against the limits, and told on stderr."""

from collections.abc import Sequence
from typing import NamedTuple

from stages.core.errors import TrainingError
from stages.core.progress import say
from stages.files.base_record import BaseRecord
from stages.files.records import Pair, Prompt
from stages.model.rendering import EncodedPair, Renderer

NAMED = 5
"""How many skipped rows or unknown words a line names; the rest are counted."""

TRAIN = "train on"


class FittingPrompts(NamedTuple):
    """The prompts that fit."""

    ids: list[list[int]]
    """Token ids of each [P]."""
    indexes: list[int]
    """Their places in the file."""
    skipped_long: int


class FittingPairs(NamedTuple):
    """The pairs that fit."""

    pairs: list[EncodedPair]
    indexes: list[int]
    """Their places in the file."""
    skipped_long: int


def fitting_prompts(section: str, prompts: Sequence[Prompt], renderer: Renderer, max_sequence: int, purpose: str = TRAIN) -> FittingPrompts:
    """Prompts of at most `max_sequence` tokens as rendered; raises TrainingError where there is none."""
    encoded = [renderer.prompt(prompt.prompt) for prompt in prompts]
    kept = _kept(section, "prompt", [len(ids) for ids in encoded], max_sequence, purpose)
    if kept:
        say(f"first prompt {renderer.shown(encoded[kept[0]])}")
    return FittingPrompts([encoded[index] for index in kept], kept, len(encoded) - len(kept))


def fitting_pairs(section: str, pairs: Sequence[Pair], renderer: Renderer, max_sequence: int, purpose: str = TRAIN) -> FittingPairs:
    """Pairs of which both whole sides have at most `max_sequence` tokens; raises TrainingError where there is none."""
    encoded = [renderer.pair(pair) for pair in pairs]
    kept = _kept(section, "pair", [pair.longest for pair in encoded], max_sequence, purpose)
    if kept:
        say(f"first chosen {renderer.shown(encoded[kept[0]].chosen)}")
        say(f"first rejected {renderer.shown(encoded[kept[0]].rejected)}")
    return FittingPairs([encoded[index] for index in kept], kept, len(encoded) - len(kept))


def require_positions(key: str, what: str, tokens: int, new_tokens: int, base: BaseRecord) -> None:
    """Raises TrainingError where a sequence would run beyond the model's positions, with the three numbers."""
    if base.positions is not None and tokens + new_tokens > base.positions:
        added = f" and {new_tokens} new ones" if new_tokens else ""
        raise TrainingError(
            f"{key}: {what} of {tokens} tokens{added} make {tokens + new_tokens}, beyond the model's {base.positions} positions; lower it"
        )


def say_unknown(renderer: Renderer) -> int:
    """Tells which words the tokenizer does not know; returns how many tokens they became."""
    total = renderer.unknown.total()
    if total:
        words = [f"{word} ({times})" for word, times in renderer.unknown.most_common(NAMED)]
        more = len(renderer.unknown) - len(words)
        say(f"{total} tokens are unknown to the tokenizer: {', '.join(words)}{f' and {more} more' if more else ''}")
    return total


def _kept(section: str, what: str, lengths: Sequence[int], max_sequence: int, purpose: str) -> list[int]:
    """Indexes of the rows within the limit, told with those that are not; raises TrainingError where all rows are beyond it.

    A pair's length is its longer side's.
    """
    kept = [index for index, length in enumerate(lengths) if length <= max_sequence]
    skipped = [index for index, length in enumerate(lengths) if length > max_sequence]
    if skipped:
        named = ", ".join(str(index) for index in skipped[:NAMED])
        more = f" and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
        say(f"skipped {len(skipped)} {what}s longer than max_sequence {max_sequence}: {what} {named}{more}")
    if skipped and not kept:
        raise TrainingError(
            f"{section}.max_sequence: every {what} is longer than the sequence limit, so there is nothing to {purpose} "
            f"(the shortest has {min(lengths)} tokens, the limit is {max_sequence})"
        )
    if kept:
        ranked = sorted(lengths[index] for index in kept)
        say(f"{len(ranked)} {what}s of {ranked[0]} to {ranked[-1]} tokens, median {ranked[len(ranked) // 2]}")
    return kept

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
    kept = [index for index, ids in enumerate(encoded) if len(ids) <= max_sequence]
    _say_skipped("prompt", [index for index in range(len(encoded)) if index not in set(kept)], max_sequence)
    if prompts and not kept:
        raise TrainingError(
            f"{section}.max_sequence: every prompt is longer than the sequence limit, so there is nothing to {purpose} "
            f"(the shortest has {min(map(len, encoded))} tokens, the limit is {max_sequence})"
        )
    if kept:
        _say_lengths("prompt", [len(encoded[index]) for index in kept])
        say(f"first prompt {renderer.shown(encoded[kept[0]])}")
    return FittingPrompts([encoded[index] for index in kept], kept, len(encoded) - len(kept))


def fitting_pairs(section: str, pairs: Sequence[Pair], renderer: Renderer, max_sequence: int, purpose: str = TRAIN) -> FittingPairs:
    """Pairs of which both whole sides have at most `max_sequence` tokens; raises TrainingError where there is none."""
    encoded = [renderer.pair(pair) for pair in pairs]
    kept = [index for index, pair in enumerate(encoded) if pair.longest <= max_sequence]
    _say_skipped("pair", [index for index in range(len(encoded)) if index not in set(kept)], max_sequence)
    if pairs and not kept:
        raise TrainingError(
            f"{section}.max_sequence: every pair is longer than the sequence limit, so there is nothing to {purpose} "
            f"(the shortest pair's longer side has {min(pair.longest for pair in encoded)} tokens, the limit is {max_sequence})"
        )
    if kept:
        _say_lengths("pair", [encoded[index].longest for index in kept])
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


def _say_skipped(what: str, indexes: Sequence[int], max_sequence: int) -> None:
    if indexes:
        named = ", ".join(str(index) for index in indexes[:NAMED])
        more = f" and {len(indexes) - NAMED} more" if len(indexes) > NAMED else ""
        say(f"skipped {len(indexes)} {what}s longer than max_sequence {max_sequence}: {what} {named}{more}")


def _say_lengths(what: str, lengths: Sequence[int]) -> None:
    ranked = sorted(lengths)
    say(f"{len(ranked)} {what}s of {ranked[0]} to {ranked[-1]} tokens, median {ranked[len(ranked) // 2]}")

"""What is legal in prompts and pairs but suspect: counted for the report, and named with the rows it stands for.

Duplicates and swaps are compared as the split compares prompts (NFC, no whitespace around), so that what is counted as one
text also falls on one side. Sides count as equal only when they are the same text exactly: that is what training would see.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from stages.core.errors import DataError
from stages.files.records import Pair, PairSet, PromptSet
from stages.files.splits import normalised

NAMED = 3
"""How many rows a finding names; the rest are counted."""

IMBALANCE = 3
"""A pair is out of balance when its longer side has more than this many times the characters of the shorter."""

REFUSAL = re.compile(
    r"(?:i(?:'m| am) (?:very |so |really )?sorry|sorry,|i apologi[sz]e|unfortunately, i (?:can|am|will|do)"
    r"|i (?:can't|cannot|can not|won't|will not) (?:\w+ )?"
    r"(?:help|assist|answer|provide|comply|fulfil|do|discuss|create|write|support|engage|give)"
    r"|i(?:'m| am) (?:not able|unable)|i must decline|as an ai\b|as a (?:large )?language model)",
    re.IGNORECASE,
)
"""How a text that declines to answer begins."""

WORD = re.compile(r"\w+")


class Finding(NamedTuple):
    """One thing that is suspect: its report key, the places it was seen at, and what it means."""

    key: str
    places: tuple[str, ...]
    meaning: str

    def line(self) -> str:
        """Key, count, meaning, and the first places."""
        rest = len(self.places) - NAMED
        named = ", ".join(self.places[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
        return f"{self.key}: {len(self.places)} {self.meaning}: {named}"


def without_equal_sides(pairs: PairSet) -> tuple[PairSet, Finding]:
    """The pairs that state a preference, and those dropped since their sides are one text; raises DataError if none is left."""
    kept = [index for index, pair in enumerate(pairs.pairs) if pair.chosen != pair.rejected]
    dropped = [place for place, pair in zip(pairs.places, pairs.pairs, strict=True) if pair.chosen == pair.rejected]
    if not kept:
        raise DataError(
            f"{dropped[0]}: pair set {pairs.trait_name or pairs.path} contains no pairs with differing sides, "
            f"in all {len(dropped)} chosen and rejected are one text; at least one that differs is expected; add some"
        )
    remaining = replace(pairs, pairs=tuple(pairs.pairs[index] for index in kept), places=tuple(pairs.places[index] for index in kept))
    return remaining, Finding("equal_sides", tuple(dropped), "dropped, since chosen and rejected are one text")


def unread(found: PromptSet | PairSet) -> list[str]:
    """A line for each key beside the rows that nothing reads."""
    return [f"{found.path}: {key} is not a key that is read here; its value changes nothing" for key in found.unread]


def prompt_findings(prompts: PromptSet) -> list[Finding]:
    """What is suspect in prompts."""
    texts = ((normalised(row.prompt),) for row in prompts.prompts)
    return [Finding("duplicate_prompts", _repeats(texts, prompts.places), "repeat an earlier prompt, kept")]


def pair_findings(pairs: PairSet) -> list[Finding]:
    """What is suspect in pairs; refusals are counted by sides, the rest by pairs."""
    rows = list(zip(pairs.pairs, pairs.places, strict=True))
    compared = [_normalised_pair(pair) for pair in pairs.pairs]
    sides = [(text, f"{place} {side}") for pair, place in rows for side, text in (("chosen", pair.chosen), ("rejected", pair.rejected))]
    return [
        Finding("duplicate_pairs", _repeats(compared, pairs.places), "repeat an earlier pair, kept"),
        Finding("swapped_pairs", _swaps(compared, pairs.places), "prefer what an earlier pair rejects, kept"),
        Finding("refusal_sides", tuple(place for text, place in sides if reads_as_refusal(text)), "read as refusals to answer, kept"),
        Finding(
            "length_imbalance",
            tuple(place for pair, place in rows if _out_of_balance(pair)),
            f"have a side more than {IMBALANCE} times as long as the other, in characters, kept",
        ),
    ]


def reads_as_refusal(text: str) -> bool:
    """Whether a text begins as those do that decline to answer; English phrases alone are known."""
    return REFUSAL.match(text.strip().replace("\u2019", "'")) is not None


def diversity(texts: Iterable[str]) -> float:
    """Distinct words over all words, case folded, in (0, 1]; it falls as a set grows. 0 for texts without a word."""
    distinct: set[str] = set()
    total = 0
    for text in texts:
        words = WORD.findall(normalised(text).casefold())
        distinct.update(words)
        total += len(words)
    return len(distinct) / total if total else 0.0


def pair_texts(pairs: PairSet) -> list[str]:
    """Every text of the pairs: the prompts that there are, and both sides."""
    return [text for pair in pairs.pairs for text in (pair.prompt, pair.chosen, pair.rejected) if text is not None]


def _normalised_pair(pair: Pair) -> tuple[str | None, str, str]:
    prompt = None if pair.prompt is None else normalised(pair.prompt)
    return prompt, normalised(pair.chosen), normalised(pair.rejected)


def _repeats(rows: Iterable[tuple[str | None, ...]], places: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[tuple[str | None, ...]] = set()
    repeats = []
    for row, place in zip(rows, places, strict=True):
        if row in seen:
            repeats.append(place)
        seen.add(row)
    return tuple(repeats)


def _swaps(rows: Iterable[tuple[str | None, str, str]], places: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[tuple[str | None, str, str]] = set()
    swaps = []
    for (prompt, chosen, rejected), place in zip(rows, places, strict=True):
        if (prompt, rejected, chosen) in seen and chosen != rejected:
            swaps.append(place)
        seen.add((prompt, chosen, rejected))
    return tuple(swaps)


def _out_of_balance(pair: Pair) -> bool:
    shorter, longer = sorted((len(pair.chosen), len(pair.rejected)))
    return longer > IMBALANCE * shorter

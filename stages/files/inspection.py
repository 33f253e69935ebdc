"""What is legal in prompts and pairs but suspect: counted for the report, and named with the first rows it stands for.

Duplicates and swaps are compared as the split compares prompts (NFC, no whitespace around), so that what is counted as one
text also falls on one side. Sides count as equal only when they are the same text exactly: that is what training would see.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stages.files.records import Pair, Prompt, Text
from stages.files.splits import flat, normalised

NAMED = 3
"""How many rows a finding names; the rest are counted."""

IMBALANCE = 3
"""A pair is out of balance when its longer side has more than this many times the characters of the shorter."""

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that it could not read: a text was damaged before it came here."""

REFUSAL = re.compile(
    r"(?:i(?:'m| am) (?:very |so |really )?sorry|sorry,|i apologi[sz]e|unfortunately, i (?:can|am|will|do)"
    r"|i (?:can't|cannot|can not|won't|will not) (?:\w+ )?"
    r"(?:help|assist|answer|provide|comply|fulfil|do|discuss|create|write|support|engage|give)"
    r"|i(?:'m| am) (?:not able|unable)|i must decline|as an ai\b|as a (?:large )?language model)",
    re.IGNORECASE,
)
"""How a text that declines to answer begins."""

MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*['"](?:role|content|from|value)['"]\s*:""")
"""How a list of messages begins that was written as one text, as JSON or as Python shows it."""

WORD = re.compile(r"\w+")


STRINGIFIED = "stringified"


class Place(NamedTuple):
    """A row, and what of it is meant where that is not the whole."""

    row: int
    what: str = ""


@dataclass
class Finding:
    """One thing that is suspect: its report key, what it means, how often it was seen, and where first."""

    key: str
    meaning: str
    count: int = 0
    first: list[Place] = field(default_factory=list)

    def add(self, row: int, what: str | Callable[[], str] = "") -> None:
        """Counts one more; what has to be found out is asked of the first rows alone."""
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(Place(row, what if isinstance(what, str) else what()))

    def places(self, place: Callable[[int], str]) -> list[str]:
        """The first rows, as `place` names them."""
        return [" ".join(part for part in (place(row), what) if part) for row, what in self.first]

    def line(self, place: Callable[[int], str]) -> str:
        """Key, count, meaning, and the first rows."""
        rest = self.count - len(self.first)
        return f"{self.key}: {self.count} ({self.meaning}): {', '.join(self.places(place))}{f' and {rest} more' if rest > 0 else ''}"


class Words:
    """The words of texts, case folded."""

    def __init__(self) -> None:
        self.distinct: set[str] = set()
        self.total = 0

    def add(self, *texts: Text | None) -> str:
        """Counts the words of these texts, and returns the texts as one."""
        joined = _joined(*texts)
        words = WORD.findall(normalised(joined).casefold())
        self.distinct.update(words)
        self.total += len(words)
        return joined


class Inspected(NamedTuple):
    """What was found in the rows of one file."""

    findings: list[Finding]
    words: Words


class InspectedPairs(NamedTuple):
    """The same, with what of the pairs is kept."""

    findings: list[Finding]
    words: Words
    kept: list[int]
    """Indexes of the rows whose sides differ."""


def inspect_prompts(rows: Sequence[Prompt], advance: Callable[[], object]) -> Inspected:
    """What is suspect in prompts; `advance` is called for each."""
    duplicates = Finding("duplicate_prompts", "repeat an earlier prompt, kept")
    damaged = Finding("damaged_prompts", "hold U+FFFD, which stands for bytes that could not be read, kept")
    as_text = Finding(f"{STRINGIFIED}_prompts", "a list of messages written as one string, kept as that string")
    seen: set[str] = set()
    words = Words()
    for index, row in enumerate(rows):
        whole = flat(row.prompt, whole=True)
        if whole in seen:
            duplicates.add(index)
        seen.add(whole)
        if REPLACEMENT in words.add(row.prompt):
            damaged.add(index)
        if _is_messages(row.prompt):
            as_text.add(index)
        advance()
    return Inspected([duplicates, damaged, as_text], words)


def inspect_pairs(rows: Sequence[Pair], advance: Callable[[], object]) -> InspectedPairs:
    """What is suspect in pairs, by pairs or by their texts; `advance` is called for each. Those of equal sides are looked at no further."""
    equal = Finding("equal_sides", "dropped, since chosen and rejected are one text")
    duplicates = Finding("duplicate_pairs", "repeat an earlier pair, kept")
    swapped = Finding("swapped_pairs", "prefer what an earlier pair rejects, kept")
    refusals = Finding("refusal_sides", "read as refusals to answer, kept")
    imbalance = Finding("length_imbalance", f"have a side more than {IMBALANCE} times as long as the other, in characters, kept")
    damaged = Finding("damaged_pairs", "hold U+FFFD, which stands for bytes that could not be read, kept")
    without_prompt = Finding("pairs_without_prompt", "have no prompt, kept")
    as_text = Finding(f"{STRINGIFIED}_pairs", "a list of messages written as one string, kept as that string")
    seen: set[tuple[str | None, str, str]] = set()
    words = Words()
    kept = []
    for index, pair in enumerate(rows):
        advance()
        if pair.chosen == pair.rejected:
            equal.add(index)
            continue
        kept.append(index)
        prompt = None if pair.prompt is None else flat(pair.prompt, whole=True)
        chosen, rejected = flat(pair.chosen, whole=True), flat(pair.rejected, whole=True)
        if (prompt, chosen, rejected) in seen:
            duplicates.add(index)
        if (prompt, rejected, chosen) in seen and chosen != rejected:
            swapped.add(index)
        seen.add((prompt, chosen, rejected))
        shorter, longer = sorted((_characters(pair.chosen), _characters(pair.rejected)))
        if longer > IMBALANCE * shorter:
            imbalance.add(index)
        texts = {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
        joined = words.add(*texts.values())
        for what, side in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            if reads_as_refusal(side if isinstance(side, str) else side[-1].content):
                refusals.add(index, what)
        if REPLACEMENT in joined:
            damaged.add(index, _which(texts, lambda text: REPLACEMENT in _joined(text)))
        if stringified := _which(texts, _is_messages):
            as_text.add(index, stringified)
        if pair.prompt is None:
            without_prompt.add(index)
    return InspectedPairs([equal, without_prompt, duplicates, swapped, refusals, imbalance, damaged, as_text], words, kept)


def diversity(words: Sequence[Words]) -> float:
    """Distinct words over all words, in (0, 1]; it falls as a set grows. 0 for texts without a word."""
    total = sum(some.total for some in words)
    return len(set[str]().union(*(some.distinct for some in words))) / total if total else 0.0


def reads_as_refusal(text: str) -> bool:
    """Whether a text begins as those do that decline to answer; English phrases alone are known."""
    return REFUSAL.match(text[:200].strip().replace("\u2019", "'")) is not None


def _which(texts: Mapping[str, Text | None], test: Callable[[Text], bool]) -> str:
    """The names of the texts that pass."""
    return " and ".join(name for name, text in texts.items() if text is not None and test(text))


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(len(message.content) for message in text)


def _is_messages(text: Text) -> bool:
    return isinstance(text, str) and (text[:1] == "[" or text[:1].isspace()) and MESSAGES_AS_TEXT.match(text) is not None


def _joined(*texts: Text | None) -> str:
    """The texts as one, a line each."""
    strings = [text if isinstance(text, str) else "\n".join(message.content for message in text) for text in texts if text is not None]
    return "\n".join(strings)

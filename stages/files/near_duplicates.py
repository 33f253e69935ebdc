"""Texts that are nearly another: the same but for case, punctuation, or a few words.

Two texts are near when their sets of shingles (five characters in a row, case folded, whitespace and sentence punctuation
taken for one space) have a Jaccard similarity of THRESHOLD or more. Candidates come from MinHash signatures in bands
(Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3), and the most similar of them by their signatures are
compared exactly: what is named is near, and of two texts at the threshold about one in twenty is missed, of more similar ones
fewer. Where thousands of texts share a frame, so that each has thousands of candidates, more can be missed.
"""

import re

from rensa import RMinHash, RMinHashLSH

THRESHOLD = 0.8
SHINGLE = 5
"""Characters of a shingle."""

PERMUTATIONS = 128
BANDS = 16
"""Two texts of similarity s share a band with probability 1 - (1 - s^8)^16: 0.95 at 0.8, 0.24 at 0.6."""

LONGEST = 50_000
"""Characters of a text that are looked at, its first ones."""

ESTIMATED = 0.7
"""Estimated similarity from which a candidate is compared: the estimate's deviation is 0.035 at the threshold."""

WEIGHED, COMPARED = 1000, 3
"""Candidates of a text whose signatures are looked at, the first ones, and of which the most similar are compared: bounds of its time."""

_BETWEEN = re.compile(r"""[\s.,;:!?"'()\[\]{}\u2018-\u201f\u2026]+""")


class NearIndex:
    """Texts added so far, by number; finds one that a text is near to."""

    def __init__(self) -> None:
        self._bands = RMinHashLSH(THRESHOLD, PERMUTATIONS, BANDS)
        self._added: dict[int, tuple[str, RMinHash]] = {}

    def add(self, number: int, text: str) -> None:
        """Adds a text, to be found under its number."""
        signature = _signature(shingles(text))
        self._bands.insert(number, signature)
        self._added[number] = (text, signature)

    def find(self, text: str) -> int | None:
        """The number of a text that this one is near to; None where there is none."""
        own = shingles(text)
        signature = _signature(own)
        weighed = ((signature.jaccard(self._added[number][1]), -number) for number in sorted(self._bands.query(signature))[:WEIGHED])
        for estimate, number in sorted(weighed, reverse=True)[:COMPARED]:
            if estimate >= ESTIMATED and similarity(own, shingles(self._added[-number][0])) >= THRESHOLD:
                return -number
        return None


def shingles(text: str) -> set[str]:
    """The shingles of a text; of one shorter than a shingle, or of punctuation alone, the text itself."""
    plain = _BETWEEN.sub(" ", text[:LONGEST].casefold()).strip() or text[:LONGEST].strip()
    return {plain[start : start + SHINGLE] for start in range(max(1, len(plain) - SHINGLE + 1))}


def similarity(one: set[str], other: set[str]) -> float:
    """Jaccard similarity: what two sets share of what they have together, in [0, 1]."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def _signature(shingled: set[str]) -> RMinHash:
    signature = RMinHash(PERMUTATIONS, 0)
    signature.update(list(shingled))
    return signature

"""Texts that are nearly another: the same but for case, punctuation, or a few words.

Two texts are near when their sets of shingles (five characters in a row, case folded, anything but letters and digits
taken for one space) have a Jaccard similarity of THRESHOLD or more. Candidates come from MinHash signatures in bands
(Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3), and are then compared exactly: what is named is
near, and of two texts at the threshold about one in twenty is missed, of more similar ones fewer.
"""

import re

from rensa import RMinHash, RMinHashLSH

THRESHOLD = 0.8
SHINGLE = 5
"""Characters of a shingle."""

PERMUTATIONS = 128
BANDS = 16
"""Two texts of similarity s share a band with probability 1 - (1 - s^8)^16: 0.95 at 0.8, 0.24 at 0.6."""

ESTIMATED = 0.65
"""Estimated similarity from which a candidate is compared: the estimate's deviation is 0.035 at the threshold."""

_BETWEEN = re.compile(r"[\W_]+")


class NearIndex:
    """Texts added so far, by number; finds the first one that a text is near to."""

    def __init__(self) -> None:
        self._bands = RMinHashLSH(THRESHOLD, PERMUTATIONS, BANDS)
        self._added: dict[int, tuple[str, RMinHash]] = {}

    def find(self, text: str, add_as: int | None = None) -> int | None:
        """The number of a text that this one is near to; where there is none, and a number is given, this one is added under it."""
        own = shingles(text)
        signature = RMinHash(PERMUTATIONS, 0)
        signature.update(list(own))
        for number in sorted(self._bands.query(signature)):
            added, other = self._added[number]
            if signature.jaccard(other) >= ESTIMATED and similarity(own, shingles(added)) >= THRESHOLD:
                return int(number)
        if add_as is not None:
            self._bands.insert(add_as, signature)
            self._added[add_as] = (text, signature)
        return None


def shingles(text: str) -> set[str]:
    """The shingles of a text; of one shorter than a shingle, the text itself."""
    plain = _BETWEEN.sub(" ", text.casefold()).strip()
    return {plain[start : start + SHINGLE] for start in range(max(1, len(plain) - SHINGLE + 1))}


def similarity(one: set[str], other: set[str]) -> float:
    """Jaccard similarity: what two sets share of what they have together, in [0, 1]."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)

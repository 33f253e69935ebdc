"""What rows have in common with other rows: near duplicates, and held-out rows that training has seen.

For leakage a row is compared by what it is held out by: its prompt, or its two sides where a pair has none. The split keeps
equal prompts on one side, in both files, so what leaks exactly is a side of a pair without a prompt; what leaks nearly the
split's hash cannot see. Training rows of both files count, since evaluate takes reward model and policy together.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from heapq import merge
from itertools import islice
from typing import NamedTuple

from stages.files.inspection import Finding
from stages.files.near_duplicates import NearIndex
from stages.files.records import Pair, Prompt
from stages.files.splits import Split, flat, identity

NEAR_DUPLICATE = "near_duplicate"
NEAR_LEAKED = "near_leaked"


class Divided(NamedTuple):
    """The rows of one file and how they are split; `name` is prompts or pairs."""

    name: str
    rows: Sequence[Prompt | Pair]
    place: Callable[[int], str]
    """Where the row at an index stands in the file."""
    split: Split

    def first(self, most: int) -> list[int]:
        """The indexes of the first rows that are kept, at most so many, in the order of the file."""
        return list(islice(merge(self.split.train, self.split.heldout), most))


def steps(files: Sequence[Divided], most: int) -> int:
    """How often `compare` will call `advance`."""
    return 2 * sum(min(most, sum(map(len, file.split))) for file in files)


def compare(files: Sequence[Divided], most: int, advance: Callable[[], object]) -> list[list[Finding]]:
    """By file, what its rows have in common with others; near texts among the first `most` rows of each, where that is not 0."""
    exact = leaked(files)
    if not most:
        return [[finding] for finding in exact]
    repeated = [near_duplicates(file, most, advance) for file in files]
    return [list(findings) for findings in zip(exact, repeated, near_leaked(files, most, advance), strict=True)]


def leaked(files: Sequence[Divided]) -> list[Finding]:
    """By file, held-out rows of which a training row of any has the prompt or, where they have none, a side."""
    trained = {text for file in files for row in file.split.train for text in identity(file.rows[row])}
    findings = []
    for file in files:
        found = Finding(f"leaked_{file.name}", "are held out, though a training row has the same prompt, or without one a side")
        for row in file.split.heldout:
            if not trained.isdisjoint(identity(file.rows[row])):
                found.add(row)
        findings.append(found)
    return findings


def near_duplicates(file: Divided, most: int, advance: Callable[[], object]) -> Finding:
    """Among the first `most` rows, those that are near to an earlier one and not the same."""
    found = Finding(f"{NEAR_DUPLICATE}_{file.name}", "nearly repeat an earlier row, kept")
    index, seen = NearIndex(), set[str]()
    for row in file.first(most):
        text = _whole(file.rows[row])
        if text not in seen:
            if (like := index.find(text)) is not None:
                found.add(row, partial(_like, file, like))
            index.add(row, text)
        seen.add(text)
        advance()
    return found


def near_leaked(files: Sequence[Divided], most: int, advance: Callable[[], object]) -> list[Finding]:
    """By file, among the first `most` rows of each, held-out rows that are near to a training row of any."""
    sides = {file.name: set(file.split.heldout) for file in files}
    training = NearIndex()
    trained: list[tuple[Divided, int]] = []
    for file in files:
        for row in file.first(most):
            if row not in sides[file.name]:
                for text in identity(file.rows[row]):
                    training.add(len(trained), text)
                    trained.append((file, row))
    look = lru_cache(maxsize=None)(training.find)  # many rows have one prompt
    findings = []
    for file in files:
        found = Finding(
            f"{NEAR_LEAKED}_{file.name}", "are held out, though a training row has nearly the same prompt, or without one a side"
        )
        for row in file.first(most):
            if row in sides[file.name]:
                like = next((like for text in identity(file.rows[row]) if (like := look(text)) is not None), None)
                if like is not None:
                    found.add(row, partial(_like, *trained[like]))
            advance()
        findings.append(found)
    return findings


def _like(file: Divided, row: int) -> str:
    return f"like {file.place(row)}"


def _whole(row: Prompt | Pair) -> str:
    texts = (row.prompt,) if isinstance(row, Prompt) else (row.prompt, row.chosen, row.rejected)
    return "\n".join(flat(text) for text in texts if text is not None)  # a system turn that all share would make all alike

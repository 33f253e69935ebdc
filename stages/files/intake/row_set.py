"""The rows of a user's file once they are read, and how it was read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from stages.files.records import Pair, Prompt

T = TypeVar("T", Prompt, Pair)


@dataclass(frozen=True)
class RowSet(Generic[T]):
    """The rows of a file, in its order, and how it was read."""

    rows: list[T]
    path: Path
    format: str
    texts: str
    """strings, messages or transcripts; several of them with commas."""
    numbers: Sequence[int]
    """Of each row, what `label` takes."""
    label: Callable[[int], str]
    remarks: tuple[str, ...]
    """What a user should know of how the file was read: keys that nothing reads, columns that are kept."""
    mapped: frozenset[str]
    """The keys of data.columns whose columns the file has."""
    implicit_prompts: int = 0
    """Pairs whose prompt is what both sides begin with."""

    def place(self, index: int) -> str:
        """Where the row at this index stands in the file."""
        return self.label(self.numbers[index])


PromptSet = RowSet[Prompt]
PairSet = RowSet[Pair]

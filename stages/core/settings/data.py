"""Section `data`: the prompts and pairs, how they are read, and how many of them are held out."""

from dataclasses import dataclass

from stages.core.settings import schema
from stages.core.settings.schema import not_empty, setting


def _fraction(value: float) -> str | None:
    return None if 0 <= value < 1 else "heldout_fraction must be zero or more and below one"


@dataclass(frozen=True)
class Columns:
    """What the files call the columns that are read; null for the names that are known."""

    prompt: str | None = setting(not_empty("a column's name is expected, or null"))
    """The prompt; known as prompt."""
    chosen: str | None = setting(not_empty("a column's name is expected, or null"))
    """The better side; known as chosen or positive."""
    rejected: str | None = setting(not_empty("a column's name is expected, or null"))
    """The worse side; known as rejected or negative."""


@dataclass(frozen=True)
class Data:
    """What `validate` reads; paths lie under data/."""

    prompts: str = setting(not_empty("the path of a prompts file is expected"))
    """Prompts file, under data/."""
    pairs: str = setting(not_empty("the path of a pairs file is expected"))
    """Pairs file, under data/."""
    format: str = setting(schema.one_of("auto", "json", "jsonl", "csv", "parquet", "transcripts"))
    """Of both files: auto goes by their content; a format is forced, and its strings are taken as they are; transcripts forces those."""
    columns: Columns = setting()
    """What the files call the columns that are read."""
    heldout_fraction: float = setting(_fraction)
    """Share of prompts, and of pairs, kept from training, in [0, 1); chosen by a hash of the prompt."""
    seed: int = setting(schema.seed)
    """Another seed holds out other rows."""
    near_duplicates: int = setting(schema.at_least(0, "near_duplicates must be zero, for none, or a number of rows"))
    """Rows of each file that near duplicates are looked for among, the first ones; 0 looks for none."""

"""Section `data`: the prompts and pairs, and how many of them are held out."""

from dataclasses import dataclass

from stages.core.settings import schema
from stages.core.settings.schema import not_empty, setting


def _fraction(value: float) -> str | None:
    return None if 0 <= value < 1 else "heldout_fraction must be zero or more and below one"


@dataclass(frozen=True)
class Data:
    """What `validate` reads; paths lie under data/."""

    prompts: str = setting(not_empty("the path of a prompts file is expected"))
    """Prompts file, under data/."""
    pairs: str = setting(not_empty("the path of a pairs file is expected"))
    """Pairs file, under data/."""
    heldout_fraction: float = setting(_fraction)
    """Share of prompts, and of pairs, kept from training, in [0, 1); chosen by a hash of the prompt."""
    seed: int = setting(schema.seed)
    """Another seed holds out other rows."""

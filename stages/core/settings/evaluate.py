"""Section `evaluate`: how base and policy are sampled and compared on held-out prompts."""

from dataclasses import dataclass

from stages.core.settings import schema
from stages.core.settings.schema import above, at_least, between, setting, temperature

MOST_RESAMPLES = 1_000_000


@dataclass(frozen=True)
class Evaluate:
    """What the evaluate stage measures with."""

    samples: int = setting(at_least(1, "samples must be at least one per prompt"))
    """Completions per held-out prompt, from the base and from the policy, on the same draws."""
    temperature: float = setting(temperature("temperature must be a finite number of zero (greedy) or more", greedy=True))
    """Sampling temperature; 0 is greedy."""
    top_p: float = setting(above(0, 1, "top_p must be above zero and at most one"))
    """Nucleus sampled from."""
    max_new_tokens: int = setting(at_least(1, "max_new_tokens must be greater than zero"))
    """Tokens that a completion may have, its end token included."""
    max_sequence: int = setting(at_least(1, "max_sequence must be at least one token"))
    """Tokens of a rendered prompt, or of a pair's side; longer ones are skipped whole and counted."""
    seed: int = setting(schema.seed)
    """Seed of the draws and of the bootstrap."""
    bootstrap: int = setting(between(1, MOST_RESAMPLES, "bootstrap must be at least one resample"))
    """Resamples behind each 95% interval."""

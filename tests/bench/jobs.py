"""The jobs that are timed: texts of an exact number of tokens, cut from this project's own README, and the settings around them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

TEXT = Path(__file__).resolve().parents[2] / "README.md"
RARE = "<file_sep>"
"""A token of SmolLM2's that it never writes: as the end token it lets every completion have the same length on both sides."""


def prompts(tokenizer: PreTrainedTokenizerBase, tokens: int, count: int) -> list[str]:
    """Unlike texts that have just this many tokens when they are encoded again."""
    ids = tokenizer(TEXT.read_text(encoding="utf-8")).input_ids
    found: list[str] = []
    for start in range(0, len(ids) - tokens, 7):
        text = tokenizer.decode(ids[start : start + tokens])
        if len(tokenizer(text).input_ids) == tokens:
            found.append(text)
        if len(found) == count:
            return found
    raise ValueError(f"{TEXT} has no {count} texts of {tokens} tokens")


def grpo(checkpoint: Path, prompt: int, group: int, new_tokens: int, steps: int, threads: int, floor: bool) -> dict[str, Any]:
    """GRPO on prompts of one length, one per step, each completion of just `new_tokens`."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return {
        "checkpoint": str(checkpoint),
        "prompts": prompts(tokenizer, prompt, steps),
        "group": group,
        "new_tokens": new_tokens,
        "steps": steps,
        "threads": threads,
        "temperature": 0.9,
        "top_p": 0.95,
        "beta": 0.04,
        "learning_rate": 1e-4,
        "end_token": tokenizer.convert_tokens_to_ids(RARE),
        "floor": floor,
    }


def reward(checkpoint: Path, pairs: Sequence[dict[str, str]], threads: int) -> dict[str, Any]:
    """Reward training on pairs, four in a step, one epoch."""
    return {"checkpoint": str(checkpoint), "pairs": list(pairs), "batch_size": 4, "threads": threads, "learning_rate": 1e-4}

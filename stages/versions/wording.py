"""How numbers, settings and prompts are written for a reader, in the terminal and on the page alike."""

import json
from typing import Any

from stages.versions.figures import Measured

NOTHING = "-"


def number(value: float | None, signed: bool = False) -> str:
    """Six significant digits; a dash for none."""
    if value is None:
        return NOTHING
    return f"{value:+.6g}" if signed and value else f"{value:.6g}"


def value(anything: Any) -> str:
    """A setting or a figure: numbers to six digits, texts as they are, all else as JSON."""
    if anything is None:
        return NOTHING
    if isinstance(anything, float):
        return number(anything)
    return anything if isinstance(anything, str) else json.dumps(anything, ensure_ascii=False)


def measured(figure: Measured) -> str:
    """A figure and its interval."""
    return value(figure.value) + interval(figure.low, figure.high)


def interval(low: float | None, high: float | None) -> str:
    """The ends in brackets, after a space; nothing where there are none."""
    return "" if low is None or high is None else f" [{number(low)}, {number(high)}]"


def prompt(text: Any) -> str:
    """A prompt as one text: a conversation has a line for each turn."""
    if isinstance(text, str):
        return text
    turns = [turn if isinstance(turn, dict) else {"content": turn} for turn in text] if isinstance(text, list) else [{"content": text}]
    return "\n".join(f"{turn.get('role', '')}: {value(turn.get('content'))}" for turn in turns)


def row(columns: Any) -> str:
    """A row of the data: its texts, a line for each."""
    if not isinstance(columns, dict):
        return value(columns)
    if set(columns) == {"prompt"}:
        return prompt(columns["prompt"])
    return "\n".join(f"{name}: {prompt(text) if isinstance(text, list) else value(text)}" for name, text in columns.items())


def counted(count: int, what: str) -> str:
    """A count and its noun, in the plural but for one."""
    return f"{count} {what if count == 1 else what + 's'}"

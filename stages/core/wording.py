"""How numbers, settings and prompts are written for a reader, in the terminal and on the page alike."""

import json
import re
from typing import Any, Protocol

NOTHING = "-"
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What would speak to a terminal, is no character of a page, or turns the text around it."""


class Measured(Protocol):
    """A figure with its 95% interval, where it has one."""

    @property
    def value(self) -> Any:
        """The figure."""

    @property
    def low(self) -> float | None:
        """The interval's lower end."""

    @property
    def high(self) -> float | None:
        """The upper."""


def number(value: float | None, signed: bool = False) -> str:
    """Six significant digits; a dash for none."""
    if value is None:
        return NOTHING
    return f"{value:+.6g}" if signed and value else f"{value:.6g}"


def short(value: float) -> str:
    """Three significant digits, as in a sentence."""
    return f"{value:.3g}"


def short_interval(low: float | None, high: float | None) -> str:
    """The ends so, in brackets, after a space; nothing where there are none."""
    return "" if low is None or high is None else f" [{short(low)}, {short(high)}]"


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


def verdict(low: float | None, high: float | None) -> str:
    """What the interval of a difference says, after a colon; nothing where there is none."""
    if low is None or high is None:
        return ""
    return ": no difference is shown, since the interval holds 0" if low <= 0 <= high else ": B is better" if low > 0 else ": A is better"


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


def seen(text: str) -> str:
    """The text with what is not to be seen written out; line breaks are kept."""
    return _UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text)


def counted(count: int, what: str) -> str:
    """A count and its noun, in the plural but for one."""
    return f"{count} {what if count == 1 else what + 's'}"

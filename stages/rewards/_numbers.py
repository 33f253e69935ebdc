"""Numbers in texts, as `number_answer` compares them."""

import re
from decimal import Decimal
from typing import Any

NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])-?\.\d+", re.ASCII)
"""A whole or decimal number, with commas between thousands or without; not the digits inside a word, such as in x2."""


def last_number(text: str) -> Decimal | None:
    """The value of the last number in the text; None where there is none."""
    found = NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def value_of(column: Any) -> Decimal | None:
    """What a row's column says: a number itself, or the last one of a text; None where it is neither."""
    if isinstance(column, str):
        return last_number(column)
    return Decimal(str(column)) if isinstance(column, int | float) and not isinstance(column, bool) else None

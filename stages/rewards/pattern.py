"""Reward `pattern`: 1 where a completion holds a match of a regular expression, else 0."""

import re
from collections.abc import Sequence


def pattern(completions: Sequence[str], expression: str, whole: bool = False) -> list[float]:
    """1.0 or 0.0 for each completion; with `whole` the expression must match all of it. Python's grammar; a dot matches line breaks too.

    Raises ValueError where the expression is none.
    """
    try:
        compiled = re.compile(expression, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{expression!r} is no regular expression: {error}") from error
    match = compiled.fullmatch if whole else compiled.search
    return [float(match(completion) is not None) for completion in completions]

"""Reward `number_answer`: 1 where the last number of a completion is that of the row's column `answer`, else 0."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from stages.rewards._numbers import last_number, value_of


def number_answer(
    completions: Sequence[str], columns: Sequence[Mapping[str, Any]], column: str = "answer", after: str | None = None
) -> list[float | None]:
    """1.0 or 0.0 for each completion; None, to abstain, where the row's `column` is missing or holds no number.

    Equal is what has the same value: 1,000 and 1000.0. Of a column that holds a whole solution, such as GSM8K's own that ends
    with `#### 1000`, its last number counts. With `after`, a completion's answer is looked for behind the last place where it
    stands, and there is none where it does not stand at all.
    """
    return [_reward(completion, value_of(row.get(column)), after) for completion, row in zip(completions, columns, strict=True)]


def _reward(completion: str, answer: Decimal | None, after: str | None) -> float | None:
    if answer is None:
        return None
    _, found, said = completion.rpartition(after) if after else ("", "all of it", completion)
    return float(bool(found) and last_number(said) == answer)

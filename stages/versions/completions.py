"""The policies' completions of the same held-out prompts side by side, and what B's rewards are beyond A's.

Rows are matched by prompt and draw; of a prompt that stands several times, the first with the first.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.versions import json_lines

Floats = NDArray[np.float64]
Interval = tuple[float, float | None, float | None]
"""A mean, and the ends of its 95% interval where there is one."""
Averaging = Callable[[Floats], Interval]
"""The mean over prompts with its interval."""

ROUNDING = 1e-5
"""Of float32 scores of one text in batches of other shapes, relative to the score."""
POLICY, REWARD, BASE, BASE_REWARD = "policy", "policy_reward", "base", "base_reward"
COLUMNS: Mapping[str, Any] = {"prompt": str | list, "draw": int, BASE: str, POLICY: str, BASE_REWARD: float | int, REWARD: float | int}
"""What each column of a row that evaluate wrote is."""


@dataclass(frozen=True)
class Draw:
    """One draw of a prompt: both policies' completions and rewards, and the base's where the rows have it."""

    draw: int
    policy_a: str
    policy_b: str
    reward_a: float
    reward_b: float
    base_a: str | None
    base_b: str | None
    base_reward_a: float | None
    base_reward_b: float | None


@dataclass(frozen=True)
class HeldoutPrompt:
    """A held-out prompt that both sides have, with the draws that both have."""

    prompt: Any
    """A string, or a list of messages."""
    reward_a: float
    """Mean over the draws."""
    reward_b: float
    difference: float | None
    """B minus A; null where the rewards are not of one reward model."""
    draws: list[Draw]


@dataclass(frozen=True)
class Paired:
    """B's policy against A's on the same prompts and draws."""

    reward_a: float
    reward_b: float
    difference: float
    difference_low: float | None
    difference_high: float | None
    win_rate: float
    """Share of draws in which B's completion scores higher; a tie counts half."""
    win_rate_low: float | None
    win_rate_high: float | None


@dataclass(frozen=True)
class Heldout:
    """Both versions' completions of held-out prompts."""

    scored_by: str
    """The reward model, in words."""
    paired: Paired | None
    """Null where nothing is shared, or the rewards are not of one reward model."""
    prompts: list[HeldoutPrompt]
    """Those that both have; where rewards can be compared, those with the greatest difference first."""
    only_a: list[Any]
    """Prompts that B has not."""
    only_b: list[Any]
    draws_apart: int
    """Draws of shared prompts that one side alone has."""


Key = tuple[str, int]
"""The JSON of a prompt, and which of its equals it is."""
Rows = Mapping[Key, Mapping[int, Mapping[str, Any]]]


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a samples.jsonl; raises DataError at one that evaluate does not write."""
    return list(json_lines.read(path, "evaluate", COLUMNS))


def compare(
    a: Iterable[Mapping[str, Any]], b: Iterable[Mapping[str, Any]], scored_by: str, average: Averaging | None, reward: str = REWARD
) -> Heldout:
    """The rows side by side; without an `average`, rewards are not compared: they are of different reward models.

    `reward` is the column that is compared.
    """
    rows_a, rows_b = _by_prompt(a), _by_prompt(b)
    shared = [key for key in rows_a if key in rows_b and rows_a[key].keys() & rows_b[key].keys()]
    prompts = [_prompt(key, rows_a[key], rows_b[key], reward, average is not None) for key in shared]
    paired = _paired(prompts, average) if average and prompts else None
    if average:
        prompts.sort(key=lambda one: -abs(one.difference or 0.0))
    return Heldout(
        scored_by=scored_by,
        paired=paired,
        prompts=prompts,
        only_a=[json.loads(key[0]) for key in rows_a if key not in rows_b],
        only_b=[json.loads(key[0]) for key in rows_b if key not in rows_a],
        draws_apart=sum(len(rows_a[key].keys() ^ rows_b[key].keys()) for key in rows_a if key in rows_b),
    )


def _by_prompt(rows: Iterable[Mapping[str, Any]]) -> dict[Key, dict[int, Mapping[str, Any]]]:
    seen: Counter[tuple[str, int]] = Counter()
    found: dict[Key, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        text, draw = json.dumps(row["prompt"], sort_keys=True), row["draw"]
        found.setdefault((text, seen[text, draw]), {})[draw] = row
        seen[text, draw] += 1
    return found


def _prompt(
    key: Key, a: Mapping[int, Mapping[str, Any]], b: Mapping[int, Mapping[str, Any]], reward: str, comparable: bool
) -> HeldoutPrompt:
    draws = [
        Draw(
            draw=draw,
            policy_a=a[draw][POLICY],
            policy_b=b[draw][POLICY],
            reward_a=a[draw][reward],
            reward_b=b[draw][reward],
            base_a=a[draw].get(BASE),
            base_b=b[draw].get(BASE),
            base_reward_a=a[draw].get(BASE_REWARD),
            base_reward_b=b[draw].get(BASE_REWARD),
        )
        for draw in sorted(a.keys() & b.keys())
    ]
    mean_a, mean_b = (float(np.mean(rewards)) for rewards in ([one.reward_a for one in draws], [one.reward_b for one in draws]))
    gap = float(np.mean([_gain(one) for one in draws])) if comparable else None
    return HeldoutPrompt(json.loads(key[0]), mean_a, mean_b, gap, draws)


def _gain(draw: Draw) -> float:
    """B's reward minus A's; none where both wrote the same, and another batch alone has rounded its score otherwise."""
    gap = draw.reward_b - draw.reward_a
    rounded = draw.policy_a == draw.policy_b and abs(gap) <= ROUNDING * max(1.0, abs(draw.reward_a))
    return 0.0 if rounded else gap


def _paired(prompts: Sequence[HeldoutPrompt], average: Averaging) -> Paired:
    wins = [np.mean([(_gain(one) > 0) + 0.5 * (_gain(one) == 0) for one in prompt.draws]) for prompt in prompts]
    difference, wins_interval = (average(np.array(values)) for values in ([prompt.difference for prompt in prompts], wins))
    return Paired(
        float(np.mean([prompt.reward_a for prompt in prompts])),
        float(np.mean([prompt.reward_b for prompt in prompts])),
        *difference,
        *wins_interval,
    )

"""The page of an evaluation: whether the policy got better, the curves of both trainings, the reward model, and every draw."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stages.core import wording
from stages.pages import charts, frame
from stages.pages.charts import Chart, Row
from stages.pages.verdict import verdict

HERE = Path(__file__).parent
TEMPLATE, STYLE, SCRIPT = (HERE / f"evaluation.{end}" for end in ("html.jinja", "css", "js"))

OF_GRPO = (
    ("mean_reward", "mean reward", "reward_spread"),
    ("mean_kl", "KL to the reference, nats per token", None),
    ("mean_completion_tokens", "completion tokens", None),
    ("truncated", charts.SHARE + "truncated", None),
    ("entropy", "entropy, nats per token", None),
    ("loss", "loss", None),
    ("clipped", charts.SHARE + "of ratios clipped", None),
    ("grad_norm", "gradient norm", None),
)
OF_REWARD = (
    ("loss", "loss", None),
    ("accuracy", "accuracy", None),
    ("mean_score_margin", "score margin", None),
    ("grad_norm", "gradient norm", None),
)
PART = "part_"
"""What the column of one of several rewards begins with."""
FIGURES = (
    ("accuracy", "reward model: share of held-out pairs ordered right"),
    ("mean_score_margin", "reward model: mean margin"),
    ("reward_gain", "reward gain, policy minus base"),
    ("win_rate", "win rate of the policy"),
    ("training_reward_gain", "gain by the reward that was trained on"),
    ("mean_kl", "KL of the policy to the base, nats per token"),
    ("start_mean_kl", "KL of the policy to the adapter that it started from"),
)
SIDES = ("mean_reward", "mean_completion_tokens", "truncated", "empty")


class Measured(NamedTuple):
    """All that the page is of."""

    evaluated: Mapping[str, Any]
    """reports/evaluate.json."""
    reward: Mapping[str, Any]
    """The reward artifact's report."""
    grpo: Mapping[str, Any]
    """The policy's."""
    curves: Mapping[str, Sequence[Row]]
    """reports/plots/<stage>.csv of both, by the stage."""
    margins: Sequence[float]
    """Of the held-out pairs, chosen minus rejected score."""
    samples: Sequence[Mapping[str, Any]]
    """Rows of samples.jsonl."""
    provenance: Mapping[str, Any]
    """Where it all comes from, by its name."""


class Draw(NamedTuple):
    """One draw of one held-out prompt, both sides."""

    number: int
    prompt: str
    draw: int
    texts: tuple[str, str]
    rewards: tuple[float, float]
    gain: float
    training: tuple[float | None, float | None] | None
    """By the reward that was trained on, where that is another."""
    parts: list[tuple[str, float | None, float | None]]
    """The same of each of several."""


def render(measured: Measured) -> bytes:
    """The page, in UTF-8."""
    draws = sorted(_draws(measured.samples), key=lambda draw: (-abs(draw.gain), draw.number, draw.draw))
    return frame.render(
        TEMPLATE,
        STYLE,
        SCRIPT,
        verdict=verdict(measured.evaluated, measured.reward, measured.grpo),
        figures=[(what, _figure(measured.evaluated, key)) for key, what in FIGURES if key in measured.evaluated],
        sides=[(key.replace("_", " "), *(_figure(measured.evaluated, f"{side}_{key}") for side in ("base", "policy"))) for key in SIDES],
        grpo=_curves(measured.curves["grpo"], OF_GRPO) + _parts(measured.curves["grpo"]),
        reward=_curves(measured.curves["reward"], OF_REWARD),
        pairs=_of_pairs(measured.margins),
        draws=draws,
        training_reward=measured.evaluated["training_reward"],
        settings=[
            (name, _flat(report))
            for name, report in (("evaluate", measured.evaluated), ("grpo", measured.grpo), ("reward", measured.reward))
        ],
        provenance=measured.provenance,
    )


def _draws(samples: Sequence[Mapping[str, Any]]) -> list[Draw]:
    numbers: dict[str, int] = {}
    draws = []
    for row in samples:
        prompt = wording.prompt(row["prompt"])
        if row["draw"] == 0 or prompt not in numbers:
            numbers[prompt] = len(numbers) + 1
        rewards = row["base_reward"], row["policy_reward"]
        training = (row["training_base_reward"], row["training_policy_reward"]) if "training_base_reward" in row else None
        parts = [
            (name, value, row["training_policy_parts"][name]) for name, value in row.get("training_base_parts", {}).items()
        ]  # those of the reward that was trained on
        texts = row["base"], row["policy"]
        draws.append(Draw(numbers[prompt], prompt, row["draw"], texts, rewards, rewards[1] - rewards[0], training, parts))
    return draws


def _curves(rows: Sequence[Row], columns: Sequence[tuple[str, str, str | None]]) -> list[Chart]:
    found = (charts.curve(rows, column, title, around) for column, title, around in columns)
    return [chart for chart in found if chart]


def _parts(rows: Sequence[Row]) -> list[Chart]:
    names = [column.removeprefix(PART) for column in rows[0] if column.startswith(PART)]
    return _curves(rows, [(PART + name, f"mean reward, {name} alone", None) for name in names])


def _of_pairs(margins: Sequence[float]) -> list[Chart]:
    return [charts.margins(margins), charts.calibration(charts.calibrated(margins))] if len(margins) else []


def _figure(report: Mapping[str, Any], key: str) -> str:
    if report[key] is None:
        return wording.NOTHING
    return wording.short(report[key]) + wording.short_interval(report.get(f"{key}_low"), report.get(f"{key}_high"))


def _flat(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a report holds beside its history, in the order of the report."""
    return [(key, wording.value(value)) for key, value in report.items() if key != "history"]

"""Whether the policy got better, in a sentence, and what a reader must know before believing it; of the three reports."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from stages.core import wording

LARGE_KL = 1.0
"""Nats per token, from where on little of the base is left."""
TIED = 0.8
"""Correlation of reward and length from which on length alone may be what was learned."""
MANY = 0.5
"""Share of completions cut, or of flat groups, that is told."""

Report = Mapping[str, Any]


class Verdict(NamedTuple):
    """What stands at the top of the page."""

    sentence: str
    warnings: list[str]


def verdict(evaluated: Report, reward: Report, grpo: Report) -> Verdict:
    """The sentence by the reward model's gain and its interval, and the warnings."""
    return Verdict(_sentence(evaluated), [warning for warning in _warnings(evaluated, reward, grpo) if warning])


def _sentence(evaluated: Report) -> str:
    gain, low, high = (evaluated[f"reward_gain{end}"] for end in ("", "_low", "_high"))
    prompts = wording.counted(evaluated["evaluated_prompts"], "held-out prompt")
    if gain is None:
        return "No prompt was held out, so nothing is known of whether the policy got better."
    what = f"on {prompts} its reward is {wording.short(abs(gain))} {'higher' if gain > 0 else 'lower' if gain < 0 else 'different'}"
    if low is None:
        return f"Nothing is shown: {what} than the base's, and one prompt has no interval."
    told = f"{what} than the base's, 95% interval {wording.short_interval(low, high).strip()}"
    won = f", and it wins {evaluated['win_rate']:.0%} of the draws"
    if low > 0:
        return f"The policy got better: {told}{won}."
    if high < 0:
        return f"The policy got worse: {told}{won}."
    return f"No difference is shown: {told}, which holds 0."


def _warnings(evaluated: Report, reward: Report, grpo: Report) -> list[str | None]:
    last = grpo["history"][-1]
    correlation, low = evaluated["reward_length_correlation"], evaluated["accuracy_low"]
    kl, cut = evaluated["mean_kl"], evaluated["policy_truncated"]
    return [
        _near_chance(evaluated["accuracy"], low, evaluated["accuracy_high"]),
        f"{_share(cut)} of the policy's completions were truncated at evaluate.max_new_tokens ({evaluated['max_new_tokens']})"
        if cut is not None and cut >= MANY
        else None,
        f"the KL to the base has blown up: {wording.short(kl)} nats per token; raise grpo.beta, or lower grpo.learning_rate"
        if kl is not None and kl >= LARGE_KL
        else None,
        f"the reward is tied to length: over the held-out completions their correlation is {wording.short(correlation)}"
        if correlation is not None and abs(correlation) >= TIED
        else None,
        f"in the last iteration {_share(last['flat_groups'])} of the groups were flat: their rewards were equal, and taught nothing"
        if last["flat_groups"] >= MANY
        else None,
        f"the last iteration of grpo: {grpo['warning']}" if grpo.get("warning") else None,
        f"{grpo['refused_groups']} groups were refused in training" if grpo["refused_groups"] else None,
        f"{reward['skipped_long']} pairs were too long to be trained on" if reward["skipped_long"] else None,
    ]


def _near_chance(accuracy: float | None, low: float | None, high: float | None) -> str | None:
    if accuracy is None:
        return "no pair was held out, so nothing is known of the reward model that scores here"
    if low is None or low <= 0.5:
        return (
            f"the reward model is near chance: it orders {accuracy:.0%} of the held-out pairs right{wording.short_interval(low, high)}, "
            "so a gain by it says little"
        )
    return None


def _share(share: float) -> str:
    return "all" if share == 1 else f"{share:.0%}"

"""What evaluate measures: the reward model on held-out pairs, and base against policy on held-out prompts, same draws for both."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from stages.core.errors import TrainingError
from stages.core.progress import bar
from stages.core.settings.evaluate import Evaluate
from stages.files.records import Text, as_json
from stages.learning.fitting import FittingPrompts
from stages.learning.metrics import Floats, bootstrap_mean, correlation, first_not_finite, pair_order, win_rate
from stages.learning.objective import completion_means, kl_k3
from stages.learning.reward_source import Scorer
from stages.learning.scores import Drawn, Rewards
from stages.model.adapters import Adapters
from stages.model.draws import group_uniforms
from stages.model.groups import Completed, runs, sharing
from stages.model.rendering import EncodedPair, Renderer
from stages.model.reward_model import RewardModel
from stages.model.sampling import ROWS, Completion, NotFiniteError, sample

PAIRS = 8
"""Pairs scored in one forward pass."""
SIDES = ("base", "policy")
EVALUATED, AFRESH = 0, 1
"""The iteration, in draws' sense, that evaluate draws of, and one whose draws are others."""


class HeldoutGroup(NamedTuple):
    """A held-out prompt and its completions, by side."""

    place: int
    """Place of the prompt in its file."""
    prompt: list[int]
    completions: dict[str, list[Completion]]


class SideRewards(NamedTuple):
    """Rewards of one held-out prompt's completions by side, [S] each; NaN where there is none."""

    total: dict[str, Floats]
    parts: dict[str, dict[str, Floats]]
    """The same of each part, by its name."""


@dataclass(frozen=True)
class Compared:
    """One held-out prompt's completions by base and policy, on the same draws."""

    completions: dict[str, list[Completion]]
    """By side, S each."""
    rewards: dict[str, Floats]
    """By side, [S], of the pipeline's own reward model."""
    training: SideRewards | None
    """Of the reward that the policy was trained on where that is another."""
    kl: float
    """k3 estimate of KL(policy || base) on the policy's completions, mean over samples of mean over tokens, nats."""
    start_kl: float | None = None
    """The same to the adapter that the policy started from, where there is one."""


def score_pairs(reward_model: RewardModel, pairs: Sequence[EncodedPair]) -> tuple[Floats, Floats]:
    """Scores of both sides of B held-out pairs, float64 [B] twice; raises TrainingError where one is not finite."""
    chosen, rejected = [], []
    with torch.no_grad(), reward_model.adapters.using(reward_model.name, then=None):
        for start in range(0, len(pairs), PAIRS):
            batch = pairs[start : start + PAIRS]
            scores = reward_model.scores([sharing(pair) for pair in batch]).double().cpu().numpy()
            chosen.append(scores[0::2])
            rejected.append(scores[1::2])
            for side, found in (("chosen", chosen[-1]), ("rejected", rejected[-1])):
                if (broken := first_not_finite(found)) is not None:
                    raise TrainingError(
                        f"held-out pair {start + broken} of those that fit: the {side} side's score is {found[broken]}, which is not finite"
                    )
    return np.concatenate(chosen), np.concatenate(rejected)


@torch.no_grad()
def compare(
    adapters: Adapters,
    policy_name: str,
    scorer: Scorer,
    training_scorer: Scorer | None,
    prompts: FittingPrompts,
    end_tokens: Sequence[int],
    settings: Evaluate,
    start_name: str | None = None,
) -> list[Compared]:
    """Samples every held-out prompt from base and policy and scores both; the same uniform number chooses both sides' token.

    Raises TrainingError where a distribution or a reward is not finite.
    """
    found: list[Compared] = []
    sides = dict(zip(SIDES, (None, policy_name), strict=True))
    with bar(len(prompts.ids), "evaluate") as advance:
        for groups in drawn(adapters, sides, prompts, end_tokens, settings, EVALUATED):
            rewards = side_rewards(scorer, groups)
            training = side_rewards(training_scorer, groups) if training_scorer else [None] * len(groups)
            kl = _kl(adapters, policy_name, None, groups, settings.temperature or 1.0)
            start_kl = _kl(adapters, policy_name, start_name, groups, settings.temperature or 1.0) if start_name else [None] * len(groups)
            for place, group in enumerate(groups):
                found.append(Compared(group.completions, rewards[place].total, training[place], kl[place], start_kl[place]))
                advance()
    return found


@torch.no_grad()
def drawn(
    adapters: Adapters,
    sides: Mapping[str, str | None],
    prompts: FittingPrompts,
    end_tokens: Sequence[int],
    settings: Evaluate,
    iteration: int,
) -> Iterator[list[HeldoutGroup]]:
    """Completions of every held-out prompt by each side, some prompts at a time; the same uniform number chooses each side's token.

    `sides` names each side's adapter; None is the base. Raises TrainingError where a distribution is not finite.
    """
    together = max(1, ROWS // settings.samples)
    for start in range(0, len(prompts.ids), together):
        window = range(start, min(start + together, len(prompts.ids)))
        indexes = [prompts.indexes[number] for number in window]
        chooser = group_uniforms(settings.seed, iteration, indexes, settings.samples, settings.max_new_tokens)
        sampled = {}
        for side, adapter in sides.items():
            adapters.use(adapter)
            ids = [prompts.ids[number] for number in window]
            try:
                sampled[side] = sample(adapters.passes, ids, chooser, settings.temperature, settings.top_p, end_tokens)
            except NotFiniteError as error:
                raise TrainingError(
                    f"held-out prompt {prompts.indexes[window[error.prompt]]} draw {error.draw}: the {side}'s distribution is not "
                    f"finite at position {error.position}"
                ) from error
        yield [
            HeldoutGroup(prompts.indexes[number], prompts.ids[number], {side: sampled[side][place] for side in sides})
            for place, number in enumerate(window)
        ]


def side_rewards(scorer: Scorer, groups: Sequence[HeldoutGroup]) -> list[SideRewards]:
    """Each group's rewards by side; raises TrainingError where one is not finite."""
    every = [Drawn(group.place, group.prompt, [one for side in group.completions.values() for one in side]) for group in groups]
    found: list[SideRewards] = []
    for group, scores in zip(groups, scorer.scores(every), strict=True):
        values = scores.total.values.numpy()
        if (place := first_not_finite(values)) is not None:
            number, draw = divmod(place, len(values) // len(group.completions))
            raise TrainingError(
                f"held-out prompt {group.place} draw {draw}: the reward of the {list(group.completions)[number]}'s completion is "
                f"{values[place]}, which is not finite"
            )
        found.append(SideRewards(_by_side(scores.total, group), {name: _by_side(part, group) for name, part in scores.parts.items()}))
    return found


def _by_side(rewards: Rewards, group: HeldoutGroup) -> dict[str, Floats]:
    """Each side's; NaN where there is none."""
    values = rewards.values.where(rewards.rated, torch.nan)
    return dict(zip(group.completions, (part.numpy() for part in values.chunk(len(group.completions))), strict=True))


def pair_figures(scores: tuple[Floats, Floats] | None, settings: Evaluate) -> dict[str, Any]:
    """The reward model's part of the report; nulls where no pair was held out."""
    if scores is None:
        return dict.fromkeys((*_with_interval("accuracy"), "tied_pairs", *_with_interval("mean_score_margin")))
    ordered = pair_order(*scores)
    return {
        **_interval("accuracy", ordered.correct, settings),
        "tied_pairs": ordered.tied_pairs,
        **_interval("mean_score_margin", ordered.margins, settings),
    }


def prompt_figures(compared: Sequence[Compared], settings: Evaluate, parts: Sequence[str] | None, started: bool = False) -> dict[str, Any]:
    """Base against policy; nulls where no prompt was held out. `truncated` and `empty` are shares of the completions.

    Where the policy was trained on another reward, that one's figures are there too, and where that one has several `parts`, theirs;
    where it `started` from an adapter, the KL to that one.
    """
    sides = ["reward_length_correlation", *(f"{side}_{key}" for side in SIDES for key in ("mean_completion_tokens", "truncated", "empty"))]
    training = {} if parts is None else _training_figures([one.training for one in compared if one.training], settings, parts)
    if not compared:
        kls = (*_with_interval("mean_kl"), *(_with_interval("start_mean_kl") if started else ()))
        return dict.fromkeys((*_gain_keys(""), *kls, *sides)) | training
    figures = _gain("", [one.rewards for one in compared], settings)
    figures |= _interval("mean_kl", np.array([one.kl for one in compared]), settings)
    if start_kls := [one.start_kl for one in compared if one.start_kl is not None]:
        figures |= _interval("start_mean_kl", np.array(start_kls), settings)
    figures["reward_length_correlation"] = correlation(
        np.array([value for one in compared for side in SIDES for value in one.rewards[side]]),
        np.array([completion.length for one in compared for side in SIDES for completion in one.completions[side]], dtype=np.float64),
    )
    for side in SIDES:
        every = [completion for one in compared for completion in one.completions[side]]
        figures[f"{side}_mean_completion_tokens"] = float(np.mean([completion.length for completion in every]))
        figures[f"{side}_truncated"] = float(np.mean([not completion.ended for completion in every]))
        figures[f"{side}_empty"] = float(np.mean([completion.empty for completion in every]))
    return figures | training


def sample_rows(compared: Sequence[Compared], texts: Sequence[Text], renderer: Renderer) -> list[dict[str, Any]]:
    """Rows of samples.jsonl: every draw of every held-out prompt, both sides' text and reward."""
    rows = []
    for one, prompt in zip(compared, texts, strict=True):
        for draw in range(len(one.rewards["base"])):
            row = {"prompt": as_json(prompt), "draw": draw, **{side: renderer.text(one.completions[side][draw].content) for side in SIDES}}
            row |= {f"{side}_reward": float(one.rewards[side][draw]) for side in SIDES}
            if one.training is not None:
                row |= {f"training_{side}_reward": _or_none(one.training.total[side][draw]) for side in SIDES}
            if one.training is not None and len(one.training.parts) > 1:
                parts = one.training.parts.items()
                row |= {f"training_{side}_parts": {name: _or_none(part[side][draw]) for name, part in parts} for side in SIDES}
            rows.append(row)
    return rows


def _training_figures(rewards: Sequence[SideRewards], settings: Evaluate, parts: Sequence[str]) -> dict[str, Any]:
    """Of the reward that the policy was trained on: of the prompts in which it rates every completion of both sides."""
    figures = _rated_gain("training_", [one.total for one in rewards], settings)
    if len(parts) > 1:
        figures["training_parts"] = {name: _rated_gain("", [one.parts[name] for one in rewards], settings) for name in parts}
    return figures


def _rated_gain(prefix: str, rewards: Sequence[dict[str, Floats]], settings: Evaluate) -> dict[str, Any]:
    rated = [one for one in rewards if not any(np.isnan(values).any() for values in one.values())]
    figures = _gain(prefix, rated, settings) if rated else dict.fromkeys(_gain_keys(prefix))
    return {f"{prefix}rated_prompts": len(rated), **figures}


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _kl(adapters: Adapters, policy_name: str, other: str | None, groups: Sequence[HeldoutGroup], temperature: float) -> list[float]:
    """k3 estimate of KL(policy || other) on each group's policy completions; None is the base."""
    whole = [Completed(group.prompt, [completion.ids for completion in group.completions["policy"]]) for group in groups]
    found: list[float] = []
    for together in runs(whole, adapters.passes.fits):
        batch = [whole[number] for number in together]
        adapters.use(other)
        reference = adapters.passes.token_scores(batch, temperature)
        with adapters.using(policy_name, then=None):
            policy = adapters.passes.token_scores(batch, temperature)
        for one, ours, base in zip(batch, policy, reference, strict=True):
            lengths = torch.tensor([len(ids) for ids in one.completions], device=ours.log_probs.device)
            found.append(float(completion_means(kl_k3(ours.log_probs, base.log_probs), lengths).mean()))
    return found


def _gain(prefix: str, rewards: Sequence[dict[str, Floats]], settings: Evaluate) -> dict[str, Any]:
    base, policy = (np.array([one[side] for one in rewards]) for side in SIDES)  # [prompts, samples]
    wins = np.array([win_rate(*pair) for pair in zip(policy, base, strict=True)])
    return {
        f"{prefix}base_mean_reward": float(base.mean()),
        f"{prefix}policy_mean_reward": float(policy.mean()),
        **_interval(f"{prefix}reward_gain", (policy - base).mean(axis=1), settings),
        **_interval(f"{prefix}win_rate", wins, settings),
    }


def _gain_keys(prefix: str) -> tuple[str, ...]:
    gain, wins = (_with_interval(f"{prefix}{key}") for key in ("reward_gain", "win_rate"))
    return (f"{prefix}base_mean_reward", f"{prefix}policy_mean_reward", *gain, *wins)


def _interval(key: str, values: Floats, settings: Evaluate) -> dict[str, float | None]:
    """The mean over prompts or pairs under its key, and its 95% interval."""
    return dict(zip(_with_interval(key), bootstrap_mean(values, settings.bootstrap, settings.seed), strict=True))


def _with_interval(key: str) -> tuple[str, str, str]:
    return key, f"{key}_low", f"{key}_high"

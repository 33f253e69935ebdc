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
from stages.learning.metrics import Floats, bootstrap_mean, first_not_finite, pair_order, win_rate
from stages.learning.objective import completion_means, kl_k3
from stages.learning.reward_source import Scorer
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


@dataclass(frozen=True)
class Compared:
    """One held-out prompt's completions by base and policy, on the same draws."""

    completions: dict[str, list[Completion]]
    """By side, S each."""
    rewards: dict[str, Floats]
    """By side, [S], of the pipeline's own reward model."""
    training_rewards: dict[str, Floats] | None
    """By side, [S], of the reward that the policy was trained on where that is another."""
    kl: float
    """k3 estimate of KL(policy || base) on the policy's completions, mean over samples of mean over tokens, nats."""


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
            kl = _kl(adapters, policy_name, groups, settings.temperature or 1.0)
            for place, group in enumerate(groups):
                found.append(Compared(group.completions, rewards[place], training[place], kl[place]))
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


def side_rewards(scorer: Scorer, groups: Sequence[HeldoutGroup]) -> list[dict[str, Floats]]:
    """Each group's rewards by side; raises TrainingError where one is not finite."""
    scores = scorer.rewards([(group.prompt, [one for side in group.completions.values() for one in side]) for group in groups])
    found: list[dict[str, Floats]] = []
    for group, every in zip(groups, scores, strict=True):
        parts = every.chunk(len(group.completions))
        rewards = dict(zip(group.completions, (part.numpy() for part in parts), strict=True))
        for side, values in rewards.items():
            if (draw := first_not_finite(values)) is not None:
                raise TrainingError(
                    f"held-out prompt {group.place} draw {draw}: the reward of the {side}'s completion is {values[draw]}, "
                    "which is not finite"
                )
        found.append(rewards)
    return found


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


def prompt_figures(compared: Sequence[Compared], settings: Evaluate, other_reward: bool) -> dict[str, Any]:
    """Base against policy; nulls where no prompt was held out. `truncated` and `empty` are shares of the completions.

    Where the policy was trained on another reward, that one's figures are there too.
    """
    sides = [f"{side}_{key}" for side in SIDES for key in ("mean_completion_tokens", "truncated", "empty")]
    if not compared:
        gain = _gain_keys("") + (_gain_keys("training_") if other_reward else ())
        return dict.fromkeys((*gain, *_with_interval("mean_kl"), *sides))
    figures = {**_gain("", [one.rewards for one in compared], settings)}
    figures |= _interval("mean_kl", np.array([one.kl for one in compared]), settings)
    for side in SIDES:
        every = [completion for one in compared for completion in one.completions[side]]
        figures[f"{side}_mean_completion_tokens"] = float(np.mean([completion.length for completion in every]))
        figures[f"{side}_truncated"] = float(np.mean([not completion.ended for completion in every]))
        figures[f"{side}_empty"] = float(np.mean([completion.empty for completion in every]))
    training = [one.training_rewards for one in compared if one.training_rewards is not None]
    return figures | (_gain("training_", training, settings) if training else {})


def sample_rows(compared: Sequence[Compared], texts: Sequence[Text], renderer: Renderer) -> list[dict[str, Any]]:
    """Rows of samples.jsonl: every draw of every held-out prompt, both sides' text and reward."""
    rows = []
    for one, prompt in zip(compared, texts, strict=True):
        for draw in range(len(one.rewards["base"])):
            row = {"prompt": as_json(prompt), "draw": draw, **{side: renderer.text(one.completions[side][draw].content) for side in SIDES}}
            row |= {f"{side}_reward": float(one.rewards[side][draw]) for side in SIDES}
            if one.training_rewards is not None:
                row |= {f"training_{side}_reward": float(one.training_rewards[side][draw]) for side in SIDES}
            rows.append(row)
    return rows


def _kl(adapters: Adapters, policy_name: str, groups: Sequence[HeldoutGroup], temperature: float) -> list[float]:
    """k3 estimate of KL(policy || base) on each group's policy completions."""
    whole = [Completed(group.prompt, [completion.ids for completion in group.completions["policy"]]) for group in groups]
    found: list[float] = []
    for together in runs(whole, adapters.passes.fits):
        batch = [whole[number] for number in together]
        adapters.use(None)
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

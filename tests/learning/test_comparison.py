"""Base against policy: the same draws for both, figures by hand, and nulls where nothing is held out."""

import math

import numpy as np
import pytest
import torch

from stages.core.errors import TrainingError
from stages.learning import comparison
from stages.learning.comparison import ROWS, Compared, SideRewards, compare, pair_figures, prompt_figures, sample_rows, score_pairs
from stages.learning.metrics import bootstrap_mean
from stages.learning.reward_source import model_scorer
from stages.model import sampling, toy
from stages.model.adapters import Adapters
from stages.model.rendering import Renderer
from stages.model.reward_model import RewardModel
from tests import tiny
from tests.learning import runs
from tests.learning.runs import END, Written, base_record, cut, ended, evaluate_settings, fitting_prompts

pytestmark = pytest.mark.slow

MANY_ENDS = tuple(range(1, 21))
"""A third of the vocabulary ends a completion, so that some are empty and lengths differ."""


def adapted_toy(scale: float = 0.3) -> Adapters:
    """The toy with a policy; at scale 0 the policy is the base."""
    adapted = tiny.adapted(runs.frozen_toy())
    adapted.add_fresh("policy", runs.toy_plan(adapted.model), 7)
    runs.warm(adapted, "policy", scale)
    return adapted


def reward_model(adapted: Adapters, name: str = "reward", seed: int = 11) -> RewardModel:
    model = RewardModel.fresh(adapted, runs.toy_plan(adapted.model), seed)
    runs.warm(adapted, "reward", seed=seed)
    with torch.no_grad():
        model.head.copy_(torch.randn(1, 64, generator=torch.Generator().manual_seed(seed)))
    return model


def compared_toy(adapted, prompts=None, scorer=None, training=None, end_tokens=(END,), **changes):
    scorer = scorer or runs.length_scorer()
    return compare(adapted, "policy", scorer, training, prompts or fitting_prompts(3), list(end_tokens), evaluate_settings(**changes))


# Draws


def test_a_policy_that_is_the_base_gains_exactly_nothing():
    adapted = adapted_toy(scale=0.0)
    compared = compared_toy(adapted, scorer=model_scorer(adapted, reward_model(adapted)), end_tokens=MANY_ENDS)
    assert all(one.completions["base"] == one.completions["policy"] for one in compared)
    figures = prompt_figures(compared, evaluate_settings(), parts=None)
    assert (figures["reward_gain"], figures["reward_gain_low"], figures["reward_gain_high"]) == (0.0, 0.0, 0.0)
    assert (figures["win_rate"], figures["win_rate_low"], figures["win_rate_high"]) == (0.5, 0.5, 0.5)
    assert (figures["mean_kl"], figures["mean_kl_low"], figures["mean_kl_high"]) == (0.0, 0.0, 0.0)
    assert math.copysign(1.0, figures["mean_kl"]) == 1.0
    assert figures["base_mean_reward"] == figures["policy_mean_reward"] != 0.0


def test_a_policy_that_is_not_the_base_differs_on_the_same_draws():
    compared = compared_toy(adapted_toy())
    assert any(one.completions["base"] != one.completions["policy"] for one in compared)
    assert all(one.kl > 0 for one in compared)


def test_base_samples_do_not_depend_on_the_policy():
    bases = [[one.completions["base"] for one in compared_toy(adapted_toy(scale))] for scale in (0.0, 0.3)]
    assert bases[0] == bases[1]


def test_draws_depend_on_a_prompts_place_in_the_file_and_not_on_the_prompts_beside_it():
    adapted, whole = adapted_toy(), fitting_prompts(3)
    every = compared_toy(adapted, whole)
    alone = whole._replace(ids=whole.ids[2:], indexes=whole.indexes[2:])
    assert [one.completions for one in compared_toy(adapted, alone)] == [every[2].completions]
    assert [one.completions for one in compared_toy(adapted, alone._replace(indexes=[0]))] != [every[2].completions]


def test_draws_do_not_depend_on_how_many_prompts_are_decoded_together(monkeypatch):
    adapted = adapted_toy()
    every = compared_toy(adapted)
    sizes = []

    def sample(model, prompts, *arguments):
        sizes.append(len(prompts))
        return sampling.sample(model, prompts, *arguments)

    monkeypatch.setattr(comparison, "sample", sample)
    monkeypatch.setattr(comparison, "ROWS", 4)  # 2 samples each: windows of 2 and 1 prompts, base and policy
    assert [one.completions for one in compared_toy(adapted)] == [one.completions for one in every]
    assert sizes == [2, 2, 1, 1]
    assert len(compared_toy(adapted, fitting_prompts(1), samples=ROWS + 1)[0].rewards["base"]) == ROWS + 1


def test_the_seed_decides_the_draws():
    adapted = adapted_toy()
    one, again, other = (compared_toy(adapted, fitting_prompts(1), seed=seed)[0].completions for seed in (1, 1, 2))
    assert one == again != other


def test_greedy_samples_are_those_of_transformers_generate():
    """Temperature 0: every draw is the most likely continuation. Its KL is of the untempered distributions."""
    adapted = adapted_toy()
    prompts = fitting_prompts(2)
    compared = compared_toy(adapted, prompts, temperature=0.0, samples=2)
    for prompt, one in zip(prompts.ids, compared, strict=True):
        for side, name in (("base", None), ("policy", "policy")):
            adapted.use(name)
            whole = adapted.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=5,
                pad_token_id=END,
            )
            assert [completion.ids for completion in one.completions[side]] == [whole[0, len(prompt) :].tolist()] * 2
        assert one.kl == pytest.approx(plain_kl(adapted, prompt, one.completions["policy"], 1.0), rel=1e-4)


# Figures


def plain_kl(adapted, prompt, completions, temperature):
    """k3 of the policy's completions by plain loops, a row at a time through transformers."""
    means = []
    for completion in completions:
        sides = []
        for name in (None, "policy"):
            adapted.use(name)
            with torch.no_grad():
                sides.append(runs.log_probs(adapted.model, prompt, completion.ids, temperature)[0].double().tolist())
        means.append(sum(math.exp(ref - pol) - (ref - pol) - 1 for ref, pol in zip(*sides, strict=True)) / len(completion.ids))
    return sum(means) / len(means)


def test_the_kl_is_that_of_plain_loops_on_the_tempered_distribution():
    adapted, prompts = adapted_toy(), fitting_prompts(3)
    for prompt, one in zip(prompts.ids, compared_toy(adapted, prompts, temperature=0.6), strict=True):
        assert one.kl == pytest.approx(plain_kl(adapted, prompt, one.completions["policy"], 0.6), rel=1e-4)


def of_one(rewards) -> SideRewards:
    """Rewards of one part."""
    return SideRewards(rewards, {"length": rewards})


def by_hand(training=None) -> list[Compared]:
    """Two prompts, two draws of each."""
    first = Compared(
        {"base": [ended(5, 6), ended()], "policy": [cut(5, 6, 7, 8), ended(9)]},
        {"base": np.array([1.0, 2.0]), "policy": np.array([2.0, 2.0])},
        training,
        0.25,
    )
    second = Compared(
        {"base": [ended(5, 6, 7), ended(8)], "policy": [ended(), ended()]},
        {"base": np.array([3.0, 4.0]), "policy": np.array([3.0, 6.0])},
        training,
        0.75,
    )
    return [first, second]


def test_figures_by_hand():
    settings = evaluate_settings(bootstrap=30, seed=5)
    figures = prompt_figures(by_hand(), settings, parts=None)
    # per prompt the gain is (1 + 0)/2 and (0 + 2)/2; won and tied, tied and won: 3/4 each
    assert figures["base_mean_reward"] == 2.5
    assert figures["policy_mean_reward"] == 3.25
    assert figures["reward_gain"] == 0.75
    assert figures["win_rate"] == 0.75
    assert figures["mean_kl"] == 0.5
    # base: lengths 2 0 3 1, none cut, one empty; policy: 4 1 0 0, one cut, two empty
    assert [figures[f"base_{key}"] for key in ("mean_completion_tokens", "truncated", "empty")] == [1.5, 0.0, 0.25]
    assert [figures[f"policy_{key}"] for key in ("mean_completion_tokens", "truncated", "empty")] == [1.25, 0.25, 0.5]
    # intervals are over prompts, of the paired difference
    low, high = bootstrap_mean(np.array([0.5, 1.0]), 30, 5)[1:]
    assert (figures["reward_gain_low"], figures["reward_gain_high"]) == (low, high)
    assert (figures["mean_kl_low"], figures["mean_kl_high"]) == bootstrap_mean(np.array([0.25, 0.75]), 30, 5)[1:]
    assert not [key for key in figures if key.startswith("training_")]


def test_figures_of_the_training_reward_come_beside_where_it_is_another():
    figures = prompt_figures(
        by_hand(of_one({"base": np.array([0.0, 0.0]), "policy": np.array([1.0, 0.0])})), evaluate_settings(), parts=["length"]
    )
    assert (figures["training_base_mean_reward"], figures["training_policy_mean_reward"]) == (0.0, 0.5)
    assert (figures["training_reward_gain"], figures["training_win_rate"]) == (0.5, 0.75)
    assert figures["training_reward_gain_low"] == figures["training_reward_gain_high"] == 0.5
    assert figures["reward_gain"] == 0.75


def test_the_correlation_of_reward_and_length_is_over_both_sides_completions():
    # lengths 2 0 3 1 of the base and 4 1 0 0 of the policy, rewards 1 2 3 4 and 2 2 3 6
    figures = prompt_figures(by_hand(), evaluate_settings(), parts=None)
    expected = np.corrcoef([2, 0, 3, 1, 4, 1, 0, 0], [1, 2, 3, 4, 2, 2, 3, 6])[0, 1]
    assert figures["reward_length_correlation"] == pytest.approx(expected)


def test_where_nothing_is_held_out_the_same_keys_hold_nulls():
    settings = evaluate_settings()
    pairs = pair_figures((np.array([1.0]), np.array([0.0])), settings)
    assert pair_figures(None, settings) == dict.fromkeys(pairs)
    nothing = prompt_figures([], settings, parts=None)
    assert nothing == dict.fromkeys(prompt_figures(by_hand(), settings, parts=None))
    training = of_one({"base": np.array([0.0, 0.0]), "policy": np.array([1.0, 0.0])})
    keys = prompt_figures(by_hand(training), settings, parts=["length"])
    assert prompt_figures([], settings, parts=["length"]) == dict.fromkeys(keys) | {"training_rated_prompts": 0}
    assert compared_toy(adapted_toy(), fitting_prompts(0)) == []


def test_pair_figures_by_hand():
    figures = pair_figures((np.array([1.0, 2.0, 0.0, 0.0]), np.array([0.0, 2.0, 4.0, -1.0])), evaluate_settings())
    # right, tied, wrong, right; margins 1 0 -4 1
    assert (figures["accuracy"], figures["tied_pairs"], figures["mean_score_margin"]) == (0.5, 1, -0.5)
    assert figures["accuracy_low"] <= 0.5 <= figures["accuracy_high"]
    assert figures["mean_score_margin_low"] < -0.5 < figures["mean_score_margin_high"]


def test_a_lone_end_token_is_scored_on_both_sides_and_counted():
    adapted = adapted_toy()
    compared = compared_toy(adapted, samples=8, end_tokens=MANY_ENDS)
    figures = prompt_figures(compared, evaluate_settings(samples=8), parts=None)
    for side in ("base", "policy"):
        drawn = [completion for one in compared for completion in one.completions[side]]
        lengths = [len(completion.ids) - (completion.ids[-1] in MANY_ENDS) for completion in drawn]
        assert lengths.count(0) > 0
        assert figures[f"{side}_empty"] == lengths.count(0) / 24
        assert figures[f"{side}_mean_reward"] == figures[f"{side}_mean_completion_tokens"] == sum(lengths) / 24
        assert figures[f"{side}_truncated"] == sum(completion.ids[-1] not in MANY_ENDS for completion in drawn) / 24


def test_reported_means_are_those_of_the_saved_samples():
    adapted = adapted_toy()
    scorer, training = model_scorer(adapted, reward_model(adapted)), runs.length_scorer()
    compared = compared_toy(adapted, scorer=scorer, training=training)
    figures = prompt_figures(compared, evaluate_settings(), parts=["length"])
    texts = ["one", "two", "three"]
    rows = sample_rows(compared, texts, Renderer(toy.tokenizer(), base_record()))
    assert [(row["prompt"], row["draw"]) for row in rows] == [(text, draw) for text in texts for draw in (0, 1)]
    for prefix in ("", "training_"):
        base, policy = ([row[f"{prefix}{side}_reward"] for row in rows] for side in ("base", "policy"))
        assert figures[f"{prefix}base_mean_reward"] == pytest.approx(sum(base) / 6)
        assert figures[f"{prefix}policy_mean_reward"] == pytest.approx(sum(policy) / 6)
        assert figures[f"{prefix}reward_gain"] == pytest.approx((sum(policy) - sum(base)) / 6)
        wins = sum(1.0 if after > before else 0.5 if after == before else 0.0 for before, after in zip(base, policy, strict=True))
        assert figures[f"{prefix}win_rate"] == pytest.approx(wins / 6)


def test_a_saved_sample_has_its_columns_and_its_text_without_special_tokens():
    rows = sample_rows(by_hand()[:1], ["the child"], Renderer(toy.tokenizer(), base_record()))
    assert list(rows[0]) == ["prompt", "draw", "base", "policy", "base_reward", "policy_reward"]
    words = {number: word for word, number in toy.IDS.items()}
    assert rows[0]["base"] == f"{words[5]} {words[6]}"
    assert rows[1] == {"prompt": "the child", "draw": 1, "base": "", "policy": words[9], "base_reward": 2.0, "policy_reward": 2.0}


# Scores


@pytest.mark.parametrize("count", [1, 8, 9])
def test_pairs_score_in_batches_as_they_do_alone(count):
    model = reward_model(adapted_toy())
    pairs = runs.calm_pairs(count)
    chosen, rejected = score_pairs(model, pairs)
    assert chosen.shape == rejected.shape == (count,)
    with torch.no_grad(), model.adapters.using("reward", then=None):
        alone = [[model.scores(tiny.whole([side])).item() for side in pair] for pair in pairs]
    assert chosen == pytest.approx([pair[0] for pair in alone], rel=1e-4, abs=1e-5)
    assert rejected == pytest.approx([pair[1] for pair in alone], rel=1e-4, abs=1e-5)


def test_comparing_touches_no_weight():
    adapted = adapted_toy()
    model = reward_model(adapted)
    before = {name: tensor.clone() for name, tensor in adapted.model.state_dict().items()}
    head = model.head.detach().clone()
    compared_toy(adapted, scorer=model_scorer(adapted, model))
    score_pairs(model, runs.calm_pairs())
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapted.model.state_dict().items())
    assert torch.equal(model.head, head)
    assert model.head.grad is None


# Numbers that are not finite


def test_a_reward_that_is_not_finite_is_named_and_never_reported():
    # of the prompt at place 3, two of the base and two of the policy, then of that at place 4
    rewards = Written([[1.0, 2.0, 1.0, 2.0], [1.0, 2.0, 1.0, float("inf")]])
    with pytest.raises(
        TrainingError, match=r"^held-out prompt 4 draw 1: the reward of the policy's completion is inf, which is not finite$"
    ):
        compared_toy(adapted_toy(), fitting_prompts(2), scorer=rewards)


def test_a_score_that_is_not_finite_is_named_and_never_reported():
    model = reward_model(adapted_toy())
    with torch.no_grad():
        model.head[0, 0] = float("nan")
    with pytest.raises(TrainingError, match=r"^held-out pair 0 of those that fit: the chosen side's score is nan, which is not finite$"):
        score_pairs(model, runs.calm_pairs(2))


def test_a_policy_whose_distribution_is_not_finite_is_named():
    adapted = adapted_toy(scale=float("inf"))
    with pytest.raises(TrainingError, match=r"^held-out prompt 3 draw 0: the policy's distribution is not finite at position 0$"):
        compared_toy(adapted)


# Sides


def test_each_side_draws_what_it_draws_alone_and_another_iteration_draws_other_completions():
    adapted = adapted_toy()
    adapted.add_fresh("other", runs.toy_plan(adapted.model), 8)
    runs.warm(adapted, "other", seed=6)

    def completions(iteration: int, **sides: str | None) -> list[dict]:
        groups = comparison.drawn(adapted, sides, fitting_prompts(3), [END], evaluate_settings(), iteration)
        return [group.completions for window in groups for group in window]

    both = completions(comparison.AFRESH, a="policy", b="other", again="policy")
    assert all(one["a"] == one["again"] for one in both)
    assert any(one["a"] != one["b"] for one in both)
    for side, adapter in (("a", "policy"), ("b", "other")):
        assert [one[side] for one in completions(comparison.AFRESH, **{side: adapter})] == [one[side] for one in both]
    assert completions(comparison.EVALUATED, a="policy") != [{"a": one["a"]} for one in both]

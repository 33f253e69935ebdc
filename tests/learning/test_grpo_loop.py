"""Training a policy on the random toy: identities, windows, refusals, what is measured and what stays frozen."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from stages.core.errors import TrainingError
from stages.core.settings.reward_parts import RewardPart
from stages.learning import grpo_loop, rounds, schedule
from stages.learning.grpo_loop import CURVE, planned_steps
from stages.learning.reward_source import model_scorer
from stages.learning.scores import Rewards, Scores, weighted
from stages.model import packed, sampling
from stages.model.adapters import Adapters
from stages.model.packed import PackedPasses
from stages.model.padded import PaddedPasses
from stages.model.passes import Passes
from stages.model.reward_model import RewardModel
from tests import tiny
from tests.learning import runs
from tests.learning.runs import Written, cut, ended, fitting_prompts, train_policy

pytestmark = pytest.mark.slow

HISTORY = (
    "iteration",
    "groups",
    "completions",
    "mean_reward",
    "reward_spread",
    "mean_kl",
    "policy_loss",
    "mean_completion_tokens",
    "flat_groups",
    "truncated",
    "entropy",
    "grad_norm",
    "learning_rate",
)
MANY_ENDS = tuple(range(1, 21))
"""A third of the vocabulary ends a completion, so that lengths, and with them rewards, differ in every group."""
RATE_OF_A_STANDSTILL = 1e-12
"""A learning rate that moves no weight visibly."""


def positive_zero(value: float) -> bool:
    return value == 0.0 and math.copysign(1.0, value) == 1.0


@pytest.fixture(scope="module")
def recorded():
    """6 prompts, 3 iterations, group 4, accumulation 1, under `length`."""
    return train_policy(iterations=3, end_tokens=MANY_ENDS)


# The recorded run


def test_eighteen_steps_of_sixteen_tensors(recorded):
    assert recorded.run.planned_steps == len(recorded.run.steps) == 18
    assert len(recorded.tensors) == 16
    assert sum(tensor.size for tensor in recorded.tensors.values()) == 7168
    assert recorded.run.refused_groups == 0


def test_the_first_kl_is_exactly_zero_and_the_leash_pulls_later(recorded):
    steps = recorded.run.steps
    assert positive_zero(steps[0]["mean_kl"])
    assert all(row["mean_kl"] > 0 for row in steps[1:])


def test_each_step_is_a_row_of_the_curve_and_of_the_history_file(recorded):
    rows = recorded.run.steps
    assert recorded.appended == rows
    assert all(tuple(row) == CURVE for row in rows)
    assert [(row["step"], row["iteration"]) for row in rows] == [(step, (step - 1) // 6 + 1) for step in range(1, 19)]
    assert [row["learning_rate"] for row in rows] == [schedule.learning_rate(step, 18, 5e-3, 0) for step in range(18)]


def test_an_iteration_is_the_mean_of_its_groups(recorded):
    """At one prompt per step the groups are the steps."""
    for number, entry in enumerate(recorded.run.history):
        rows = recorded.run.steps[6 * number : 6 * number + 6]
        assert tuple(entry) == HISTORY
        assert (entry["iteration"], entry["groups"], entry["completions"]) == (number + 1, 6, 24)
        for key in ("mean_reward", "reward_spread", "mean_kl", "mean_completion_tokens", "truncated", "entropy", "grad_norm"):
            assert entry[key] == pytest.approx(sum(row[key] for row in rows) / 6), key
        assert entry["policy_loss"] == pytest.approx(sum(row["loss"] for row in rows) / 6)
        assert entry["flat_groups"] == sum(row["reward_spread"] == 0 for row in rows) / 6
        assert entry["learning_rate"] == rows[-1]["learning_rate"]


def test_under_length_the_reward_is_the_number_of_tokens(recorded):
    assert all(row["mean_reward"] == row["mean_completion_tokens"] for row in recorded.run.steps)


def test_progress_has_the_documented_lines(recorded):
    number = r"-?\d+\.\d{4}"
    expected = [r"training 16 adapter tensors \(7168 parameters\) at rank 8 across 4 layers"]
    for iteration in (1, 2, 3):
        name = f"iteration {iteration}/3"
        for place in range(6):
            expected.append(f"{name} prompt {place + 3} sampling 4 completions")
            expected.append(rf"{name} step {6 * iteration - 5 + place}/18 loss {number} reward \d+\.\d{{4}} kl \d+\.\d{{5}}")
        expected.append(rf"{name} mean reward \d+\.\d{{4}} spread \d+\.\d{{4}} mean kl \d+\.\d{{5}} policy loss {number}")
    said = [line for line in recorded.said if "warning" not in line]
    assert len(said) == len(expected)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(expected, said, strict=True)), said
    first, last = recorded.run.steps[0], recorded.run.history[-1]
    assert said[2] == f"iteration 1/3 step 1/18 loss 0.0000 reward {first['mean_reward']:.4f} kl 0.00000"
    assert said[-1] == (
        f"iteration 3/3 mean reward {last['mean_reward']:.4f} spread {last['reward_spread']:.4f} "
        f"mean kl {last['mean_kl']:.5f} policy loss {last['policy_loss']:.4f}"
    )


def test_the_base_is_bitwise_what_it_was_and_so_is_what_it_computes_with_the_adapters_off(recorded):
    runs.require_frozen(recorded, fitting_prompts().ids[2], "policy")


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    prompts = fitting_prompts(2)
    one, again, other = (train_policy(prompts, end_tokens=MANY_ENDS, seed=seed) for seed in (42, 42, 43))
    assert again.bytes() == one.bytes()
    assert again.run == one.run
    assert all(mine != their for mine, their in zip(other.bytes().values(), one.bytes().values(), strict=True))


@pytest.mark.parametrize("group", range(2, 10))
def test_under_length_the_first_loss_is_exactly_zero_for_every_group_size(group):
    run = train_policy(fitting_prompts(1), group=group, end_tokens=MANY_ENDS).run
    assert run.steps[0]["reward_spread"] > 0
    assert positive_zero(run.steps[0]["loss"])
    assert positive_zero(run.steps[0]["mean_kl"])


def test_under_close_rewards_around_20_the_first_loss_is_below_a_millionth():
    rewards = Written([[20.001, 19.999, 20.0003, 19.9994]])
    first = train_policy(fitting_prompts(1), rewards).run.steps[0]
    assert abs(first["loss"]) < 1e-6
    assert first["grad_norm"] > 0.01  # while the advantages are of full size


@pytest.mark.slow
def test_length_is_learned_by_every_random_start():
    """The check that the loop works: 8 weight seeds, 8 iterations, cap 16."""
    prompts = fitting_prompts()
    settings = {"iterations": 8, "max_new_tokens": 16, "empty_completions": "score"}
    histories = [train_policy(prompts, weight_seed=seed, **settings).run.history for seed in range(8)]
    assert all(history[-1]["mean_reward"] > history[0]["mean_reward"] for history in histories)
    assert sum(history[-1]["mean_reward"] == 16 and history[-1]["reward_spread"] == 0.0 for history in histories) >= 5
    assert all(history[-1]["mean_kl"] > history[0]["mean_kl"] for history in histories)


# Loss and gradient on the model


def plain_group_loss(adapted, prompt, completions, rewards, settings):
    """The loss of one group by plain loops, one unpadded row at a time through transformers; carries the gradient."""
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    total = 0.0
    for completion, reward in zip(completions, rewards, strict=True):
        advantage = (reward - mean) / deviation if deviation else 0.0
        adapted.use(None)
        with torch.no_grad():
            reference = runs.log_probs(adapted.model, prompt, completion.ids, settings.temperature)[0].double()
        adapted.use("policy")
        policy = runs.log_probs(adapted.model, prompt, completion.ids, settings.temperature)[0].double()
        gap = reference - policy
        tokens = torch.exp(policy - policy.detach()) * advantage - settings.beta * (torch.exp(gap) - gap - 1)
        total = total - tokens.mean()
    return total / len(completions)


def expected_gradients(adapted, snapshot, groups, settings):
    """Gradient and loss of the mean over groups, with the weights as they were at the snapshot."""
    factors = list(adapted.factors("policy").values())
    with torch.no_grad():
        for factor, tensor in zip(factors, snapshot.tensors, strict=True):
            factor.copy_(tensor)
    loss = sum(plain_group_loss(adapted, prompt, completions, rewards, settings) for prompt, completions, rewards in groups) / len(groups)
    return loss.item(), torch.autograd.grad(loss, factors)


@pytest.mark.parametrize("tokens_of_a_pass", [1, 4096])
def test_windows_stay_within_an_iteration_and_divide_by_the_groups_that_they_scored(monkeypatch, tokens_of_a_pass):
    """5 prompts by 3: windows of 3 and 2; the group of the second prompt is always refused, so they score 2 and 2.

    Whether the groups of a window go through the model one by one or together changes nothing.
    """
    monkeypatch.setattr(packed, "TOKENS", tokens_of_a_pass)
    script = [
        [ended(5, 6, 7), cut(8, 9, 10, 11), ended(12)],
        [ended(5), ended(), ended(7, 7)],
        [ended(9, 9), ended(3, 4, 5), cut(20, 21, 22, 23)],
        [cut(30, 31, 32, 33), ended(34), ended(35, 36)],
        [ended(40), ended(41, 42, 43), ended(44, 45)],
    ]
    rewards = [[0.5, -1.0, 2.0], [0.0, 3.0, 1.0], [1.0, 1.5, -0.25], [7.0, 7.0, 7.0]]
    runs.scripted(monkeypatch, script)
    prompts = fitting_prompts(5)
    changes = {"group": 3, "iterations": 2, "accumulation": 3, "max_new_tokens": 4, "empty_completions": "refuse", "beta": 0.3}
    with runs.watching(monkeypatch, grpo_loop) as seen:
        trained = train_policy(prompts, Written(rewards), **changes)
    run = trained.run
    assert [(row["step"], row["iteration"]) for row in run.steps] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert (run.planned_steps, run.refused_groups) == (4, 2)
    assert [entry["groups"] for entry in run.history] == [4, 4]
    settings = runs.grpo_settings(**changes)
    scored = [(prompts.ids[number], script[number], rewards[place]) for place, number in enumerate((0, 2, 3, 4))]
    for snapshot, row, groups in zip(seen, run.steps, [scored[:2], scored[2:]] * 2, strict=True):
        loss, gradients = expected_gradients(trained.adapters, snapshot, groups, settings)
        assert row["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)
        for found, expected in zip(snapshot.gradients, gradients, strict=True):
            assert (found - expected).norm() <= 1e-4 * expected.norm() + 1e-7


def test_a_window_is_stepped_once_however_many_groups_it_has(recorded):
    run = train_policy(iterations=2, accumulation=4).run  # 6 prompts by 4: windows of 4 and 2
    assert planned_steps(6, runs.grpo_settings(iterations=2, accumulation=4)) == run.planned_steps == len(run.steps) == 4
    assert [entry["groups"] for entry in run.history] == [6, 6]
    assert run.history[0]["grad_norm"] == pytest.approx((run.steps[0]["grad_norm"] + run.steps[1]["grad_norm"]) / 2)
    # six groups count the same, four in the first step and two in the second
    assert run.history[1]["mean_reward"] == pytest.approx((4 * run.steps[2]["mean_reward"] + 2 * run.steps[3]["mean_reward"]) / 6)


def test_log_probabilities_and_entropy_are_of_the_tempered_distribution_before_top_p(monkeypatch):
    drawn = []
    monkeypatch.setattr(rounds, "sample", lambda *arguments: drawn.extend(sampling.sample(*arguments)) or drawn[-1:])
    temperature = 0.5
    trained = train_policy(fitting_prompts(1), temperature=temperature, top_p=0.3, learning_rate=RATE_OF_A_STANDSTILL)
    means = {}
    for tempered in (temperature, 1.0):
        of_completions = []
        for completion in drawn[0]:
            _, distribution = runs.log_probs(runs.frozen_toy(), fitting_prompts(1).ids[0], completion.ids, tempered)
            of_completions.append(-(distribution.exp() * distribution).sum(-1).mean().item())
        means[tempered] = sum(of_completions) / len(of_completions)
    assert trained.run.steps[0]["entropy"] == pytest.approx(means[temperature], rel=1e-5)
    assert means[temperature] != pytest.approx(means[1.0], rel=1e-3)


def test_sampling_parameters_are_the_settings_alone():
    """A generation_config that would make every draw the same changes nothing."""
    adapted = tiny.adapted(runs.frozen_toy())
    config = adapted.model.generation_config
    config.do_sample, config.top_k, config.top_p, config.temperature, config.repetition_penalty = True, 1, 0.01, 0.01, 1.8
    assert train_policy(fitting_prompts(1), adapted=adapted).bytes() == train_policy(fitting_prompts(1)).bytes()


# Draws


def draws(monkeypatch, **changes):
    """Completions of every prompt, as an unmoved policy draws them."""
    drawn = []

    def sample(*arguments):
        drawn.extend(found := sampling.sample(*arguments))
        return found

    monkeypatch.setattr(rounds, "sample", sample)
    train_policy(learning_rate=RATE_OF_A_STANDSTILL, **changes)
    return drawn


def test_draws_do_not_depend_on_the_accumulation(monkeypatch):
    prompts = fitting_prompts(4)
    one = draws(monkeypatch, prompts=prompts, iterations=2, accumulation=1)
    assert draws(monkeypatch, prompts=prompts, iterations=2, accumulation=3) == one
    assert one[:4] != one[4:]  # each iteration draws anew
    assert len({str(group) for group in one}) == 8


def test_draws_depend_on_a_prompts_place_in_the_file_and_not_on_the_prompts_beside_it(monkeypatch):
    whole = fitting_prompts(3)
    every = draws(monkeypatch, prompts=whole)
    alone = whole._replace(ids=whole.ids[2:], indexes=whole.indexes[2:])
    assert draws(monkeypatch, prompts=alone) == every[2:]
    assert draws(monkeypatch, prompts=alone._replace(indexes=[0])) != every[2:]


def test_completions_are_drawn_from_the_policy_as_it_stands_and_not_from_the_base(monkeypatch):
    prompts, drawn = fitting_prompts(1), []
    for scale in (0.0, 0.3):
        adapted = Exploded(tiny.forward(runs.frozen_toy()))
        adapted.scale = scale
        drawn.append(draws(monkeypatch, prompts=prompts, adapted=adapted))
    assert drawn[0] == draws(monkeypatch, prompts=prompts) != drawn[1]


# What is counted


def test_lengths_leave_out_the_end_token_and_only_cut_completions_count_as_truncated(monkeypatch):
    # lengths 3, 8 (cut), 8 (cut), 5 at a cap of 8: mean 24/4, truncated 2/4
    # then 3, 5, 6, 7, all ended: mean 21/4, truncated 0
    eight = range(10, 18)
    runs.scripted(
        monkeypatch,
        [
            [ended(*eight[:3]), cut(*eight), cut(*eight), ended(*eight[:5])],
            [ended(*eight[:3]), ended(*eight[:5]), ended(*eight[:6]), ended(*eight[:7])],
        ],
    )
    steps = train_policy(fitting_prompts(2)).run.steps
    assert [(row["mean_completion_tokens"], row["truncated"]) for row in steps] == [(6.0, 0.5), (5.25, 0.0)]
    assert [row["mean_reward"] for row in steps] == [6.0, 5.25]


def test_an_end_token_as_the_last_allowed_token_is_no_truncation(monkeypatch):
    runs.scripted(monkeypatch, [[ended(*range(10, 17)), cut(*range(10, 18))]])
    (row,) = train_policy(fitting_prompts(1), group=2, max_new_tokens=8).run.steps
    assert (row["mean_completion_tokens"], row["truncated"]) == (7.5, 0.5)


def test_the_mean_reward_is_that_of_the_rewards_given_and_the_spread_their_population_deviation():
    # means 0.5 and 2; deviations of (0, 1): 1/2, of (1, 3): 1
    run = train_policy(fitting_prompts(2), Written([[0.0, 1.0], [1.0, 3.0]]), group=2, accumulation=2).run
    assert run.steps[0]["mean_reward"] == run.history[0]["mean_reward"] == 1.25
    assert run.steps[0]["reward_spread"] == run.history[0]["reward_spread"] == 0.75
    assert run.history[0]["flat_groups"] == 0.0


def test_one_flat_group_of_two_is_half_and_no_warning_where_completions_end(monkeypatch):
    runs.scripted(monkeypatch, [[ended(5, 6), ended(7)], [ended(5), ended(7, 8)]])
    run = train_policy(fitting_prompts(2), Written([[2.7, 2.7], [1.0, 3.0]]), group=2, accumulation=2).run
    assert run.history[0]["flat_groups"] == 0.5
    assert run.warning is None


def test_where_no_completion_ended_it_is_said_also_when_their_rewards_differ(monkeypatch):
    runs.scripted(monkeypatch, [[cut(5, 6), cut(7, 8)]])
    run = train_policy(fitting_prompts(1), Written([[1.0, 3.0]]), group=2).run
    assert run.history[0]["flat_groups"] == 0.0
    assert run.warning == "no completion ended; every one was cut at max_new_tokens and scored at its last token"


def test_a_reward_of_exactly_zero_is_kept():
    run = train_policy(fitting_prompts(1), Written([[0.0, 0.0, 1.0, 0.0]])).run
    assert run.steps[0]["mean_reward"] == 0.25
    assert run.steps[0]["reward_spread"] == pytest.approx(math.sqrt(3) / 4)


def test_a_reward_model_with_a_zero_head_gives_rewards_of_zero_and_a_warning():
    adapted = tiny.adapted(runs.frozen_toy())
    reward_model = RewardModel.fresh(adapted, runs.toy_plan(adapted.model), 3)
    runs.warm(adapted, "reward")
    before = [factor.detach().clone() for factor in reward_model.trainable().values()]
    trained = train_policy(fitting_prompts(2), model_scorer(adapted, reward_model), adapted=adapted)
    assert all(positive_zero(row["mean_reward"]) for row in trained.run.steps)
    assert trained.run.history[0]["flat_groups"] == 1.0
    assert "the reward is constant within every group" in trained.run.warning
    # and the reward's own adapter is no part of what is trained
    assert all(torch.equal(now, then) for now, then in zip(reward_model.trainable().values(), before, strict=True))


# Flat groups


def test_a_model_that_never_ends_is_told_at_each_iteration_and_in_the_run():
    trained = train_policy(fitting_prompts(2), end_tokens=(10_000,), iterations=2)
    for entry in trained.run.history:
        assert (entry["truncated"], entry["flat_groups"], entry["mean_completion_tokens"], entry["mean_reward"]) == (1.0, 1.0, 5.0, 5.0)
    warning = "no completion ended; the reward is constant within every group, so there is nothing to learn from"
    assert trained.run.warning == warning
    assert [line for line in trained.said if "warning" in line] == [f"iteration {number}/2 warning: {warning}" for number in (1, 2)]


@pytest.mark.parametrize(
    "changes", [{"end_tokens": (10_000,)}, {"scorer": Written([[2.7] * 16]), "group": 16}, {"scorer": Written([[0.1] * 8]), "group": 8}]
)
def test_flat_groups_without_a_leash_leave_the_adapter_byte_identical(changes):
    trained = train_policy(fitting_prompts(1), beta=0.0, **changes)
    fresh = tiny.adapted(runs.frozen_toy()).add_fresh("policy", trained.plan, 42)
    assert trained.run.history[0]["flat_groups"] == 1.0
    assert trained.bytes() == {name: factor.detach().numpy().tobytes() for name, factor in fresh.items()}
    assert trained.run.steps[0]["grad_norm"] == 0.0


# Variants


@pytest.mark.parametrize(
    "neutral",
    [
        {"clip_low": 1.0, "clip_high": 1e30},
        {"clip_low": 1e-9, "clip_high": 1e-9},
        {"aggregation": "tokens"},
        {"aggregation": "fixed"},
        {"scale_rewards": "none"},
    ],
)
def test_a_variant_that_changes_nothing_changes_no_bit(neutral):
    """Completions that all have the cap's five tokens, rewards whose deviation is one, and one update."""
    script = {"end_tokens": (10_000,), "iterations": 2, "accumulation": 2}
    default, varied = (
        train_policy(fitting_prompts(3), Written([[1.0, -1.0, 1.0, -1.0]]), **script, **changes) for changes in ({}, neutral)
    )
    assert varied.run.steps == default.run.steps
    assert varied.bytes() == default.bytes()
    assert default.run.steps[0]["grad_norm"] > 0


def test_leaving_out_truncated_completions_changes_no_bit_where_none_is(monkeypatch):
    runs.scripted(monkeypatch, [[ended(5, 6), ended(7), ended(8, 9, 10), ended()]])
    default, varied = (train_policy(fitting_prompts(3), iterations=2, **changes) for changes in ({}, {"mask_truncated": True}))
    assert varied.bytes() == default.bytes()
    assert varied.run == default.run


def test_a_ratio_of_whole_completions_changes_nothing_but_rounding_where_there_is_one_update():
    default, varied = (train_policy(fitting_prompts(3), **changes) for changes in ({}, {"importance_sampling_level": "sequence"}))
    assert varied.run.steps == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in default.run.steps]


@pytest.mark.parametrize(
    "variant", [{"aggregation": "tokens"}, {"aggregation": "fixed"}, {"scale_rewards": "none"}, {"mask_truncated": True}, {"updates": 2}]
)
def test_each_variant_trains_another_policy(variant):
    default, varied = (train_policy(fitting_prompts(3), end_tokens=MANY_ENDS, **changes) for changes in ({}, variant))
    assert varied.bytes() != default.bytes()


def test_all_tokens_of_a_window_count_the_same_whatever_group_they_are_in(monkeypatch):
    """Groups of 2 + 4 and 6 + 4 tokens in one window: the sum over all sixteen by sixteen."""
    script = [[ended(5), cut(6, 7, 8, 9)], [cut(5, 6, 7, 8, 9, 10), ended(11, 12, 13)]]
    rewards = [[0.0, 1.0], [3.0, 1.0]]
    runs.scripted(monkeypatch, script)
    with runs.watching(monkeypatch, grpo_loop) as seen:
        trained = train_policy(fitting_prompts(2), Written(rewards), group=2, accumulation=2, aggregation="tokens", beta=0.0)
    # the advantages are -1 1 and 1 -1: -(-2 + 4 + 6 - 4)/16
    assert trained.run.steps[0]["loss"] == pytest.approx(-4 / 16)
    adapted = trained.adapters
    factors = list(adapted.factors("policy").values())
    with torch.no_grad():
        for factor, tensor in zip(factors, seen[0].tensors, strict=True):
            factor.copy_(tensor)
    adapted.use("policy")
    total = 0.0
    for prompt, completions, signs in zip(fitting_prompts(2).ids, script, [(-1, 1), (1, -1)], strict=True):
        for completion, sign in zip(completions, signs, strict=True):
            total = total - sign * runs.log_probs(adapted.model, prompt, completion.ids, 0.9)[0].double().sum() / 16
    for found, expected in zip(seen[0].gradients, torch.autograd.grad(total, factors), strict=True):
        assert (found - expected).norm() <= 1e-4 * expected.norm() + 1e-7


def test_several_updates_are_taken_on_the_draws_and_rewards_of_one_round(monkeypatch):
    """Each step's loss and gradient by plain loops, with the ratio to the policy that drew, clipped."""
    scripts, rewards = [[ended(5, 6), cut(8, 9, 10, 11, 12)], [ended(7), ended(9, 9, 9)]], [[0.0, 1.0], [2.0, -1.0]]
    runs.scripted(monkeypatch, scripts)
    changes = {"group": 2, "iterations": 2, "updates": 3, "clip_low": 0.02, "clip_high": 0.03, "beta": 0.3, "learning_rate": 2e-2}
    scorer = Written(rewards)
    with runs.watching(monkeypatch, grpo_loop) as seen:
        trained = train_policy(fitting_prompts(2), scorer, **changes)
    run = trained.run
    assert run.planned_steps == len(run.steps) == planned_steps(2, runs.grpo_settings(**changes)) == 12
    assert scorer.asked == 4  # windows of one prompt in two iterations, scored once each
    assert [(entry["groups"], entry["completions"]) for entry in run.history] == [(2, 4), (2, 4)]
    assert [row["learning_rate"] for row in run.steps] == [schedule.learning_rate(step, 12, 2e-2, 0) for step in range(12)]
    assert all(tuple(row) == (*CURVE, "clipped") for row in run.steps)
    for step, (snapshot, row) in enumerate(zip(seen, run.steps, strict=True)):
        number = step // 3 % 2
        sampler = seen[step - step % 3]
        loss, gradients, clipped = clipped_loss(trained.adapters, sampler, snapshot, number, scripts, rewards, changes)
        assert row["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6), step
        assert row["clipped"] == pytest.approx(clipped)
        assert (clipped > 0) <= (step % 3 > 0)
        for found, expected in zip(snapshot.gradients, gradients, strict=True):
            assert (found - expected).norm() <= 1e-4 * expected.norm() + 1e-7
    assert sum(row["clipped"] > 0 for row in run.steps) > 4
    assert re.search(r"kl \d+\.\d{5} clipped \d\.\d{4}$", trained.said[-2])


def clipped_loss(adapted, sampler, snapshot, number, scripts, rewards, changes):
    """Of one group, by plain loops: the loss, its gradient and the share of clipped ratios."""
    factors = list(adapted.factors("policy").values())

    def found(tensors):
        with torch.no_grad():
            for factor, tensor in zip(factors, tensors, strict=True):
                factor.copy_(tensor)
        prompt = fitting_prompts(2).ids[number]
        return [runs.log_probs(adapted.model, prompt, completion.ids, 0.9)[0].double() for completion in scripts[number]]

    with torch.no_grad():
        adapted.use(None)
        reference = found(sampler.tensors)
        adapted.use("policy")
        before = found(sampler.tensors)
    now = found(snapshot.tensors)
    mean = sum(rewards[number]) / 2
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards[number]) / 2)
    total, held, tokens = 0.0, 0, 0
    for base, old, new, reward in zip(reference, before, now, rewards[number], strict=True):
        advantage, of_completion = (reward - mean) / deviation, 0.0
        for place in range(len(new)):
            ratio = torch.exp(new[place] - old[place])
            bound = min(max(ratio.item(), 1 - changes["clip_low"]), 1 + changes["clip_high"])
            gained = ratio * advantage
            if bound * advantage < gained.item():
                gained, held = bound * advantage, held + 1
            gap = base[place] - new[place]
            of_completion = of_completion - gained + changes["beta"] * (torch.exp(gap) - gap - 1)
            tokens += 1
        total = total + of_completion / len(new) / 2
    return total.item(), torch.autograd.grad(total, factors), held / tokens


def test_truncated_completions_that_are_left_out_stay_in_the_baseline(monkeypatch):
    """Rewards 0, 1 and 2; the last is truncated: it has no gradient, and the mean of 1 is still that of all three."""
    script = [[ended(5, 6), ended(7), cut(8, 9, 10, 11, 12)]]
    runs.scripted(monkeypatch, script)
    run = train_policy(fitting_prompts(1), Written([[0.0, 1.0, 2.0]]), group=3, mask_truncated=True, beta=0.0).run
    assert run.steps[0]["loss"] == pytest.approx(1 / math.sqrt(2 / 3) / 3)  # of -(-1 + 0 + nothing)/std/3
    assert (run.steps[0]["mean_reward"], run.steps[0]["truncated"]) == (1.0, pytest.approx(1 / 3))


def test_where_all_are_truncated_and_left_out_it_is_said_and_nothing_moves(monkeypatch):
    runs.scripted(monkeypatch, [[cut(5, 6), cut(7, 8)]])
    trained = train_policy(fitting_prompts(1), Written([[1.0, 3.0]]), group=2, mask_truncated=True)
    assert trained.run.warning == (
        "no completion ended; every one was cut at max_new_tokens and left out of the loss, so there is nothing to learn from"
    )
    assert trained.run.steps[0]["grad_norm"] == 0.0


# Starting from an adapter


@pytest.fixture(scope="module")
def begun(recorded):
    return recorded.tensors


def test_a_policy_that_starts_from_an_adapter_is_held_against_it_and_not_against_the_base(begun):
    trained = train_policy(end_tokens=MANY_ENDS, start=begun, beta=0.5)
    first = trained.run.steps[0]
    assert positive_zero(first["loss"])
    assert positive_zero(first["mean_kl"])
    assert all(row["mean_kl"] > 0 for row in trained.run.steps[1:])
    # the start itself is not moved, and the policy is
    kept = trained.adapters.factors("start")
    assert {name: tensor.detach().numpy().tobytes() for name, tensor in kept.items()} == {
        name: tensor.tobytes() for name, tensor in begun.items()
    }
    assert all(mine != kept[name].detach().numpy().tobytes() for name, mine in trained.bytes().items())
    runs.require_frozen(trained, fitting_prompts().ids[2], "policy")


def test_the_kl_of_a_later_step_is_that_to_the_start(begun, monkeypatch):
    with runs.watching(monkeypatch, grpo_loop) as seen:
        drawn = []
        monkeypatch.setattr(rounds, "sample", lambda *arguments: drawn.append(sampling.sample(*arguments)) or drawn[-1])
        trained = train_policy(fitting_prompts(2), end_tokens=MANY_ENDS, start=begun)
    adapted = trained.adapters
    adapted.copy_into("policy", {name: tensor.numpy() for name, tensor in zip(trained.tensors, seen[1].tensors, strict=True)})
    prompt, (completions,) = fitting_prompts(2).ids[1], drawn[1]
    kls = []
    for completion in completions:
        found = {}
        for name in ("start", "policy"):
            adapted.use(name)
            with torch.no_grad():
                found[name] = runs.log_probs(adapted.model, prompt, completion.ids, 0.9)[0].double()
        gap = found["start"] - found["policy"]
        kls.append((torch.exp(gap) - gap - 1).mean().item())
    assert trained.run.steps[1]["mean_kl"] == pytest.approx(sum(kls) / len(kls), rel=1e-3)


def test_a_start_that_changes_nothing_gives_the_bytes_of_a_fresh_adapter():
    adapted = tiny.adapted(runs.frozen_toy())
    fresh = {name: factor.detach().numpy().copy() for name, factor in adapted.add_fresh("policy", runs.toy_plan(adapted.model), 42).items()}
    plain, started = train_policy(end_tokens=MANY_ENDS), train_policy(end_tokens=MANY_ENDS, start=fresh)
    assert started.bytes() == plain.bytes()
    assert started.run == plain.run


# Several rewards


class TwoParts:
    """Tokens less half of the first token's number, each apart; the second abstains at odd first tokens, all at the token 50."""

    def scores(self, groups):
        found = []
        for group in groups:
            first = torch.tensor([one.ids[0] for one in group.completions])
            of_length = torch.tensor([float(one.length) for one in group.completions], dtype=torch.float64)
            rated = (first % 2 == 0) & (first != 50)
            parts = {"length": Rewards(of_length, first != 50), "first": Rewards(first.double() * rated, rated)}
            found.append(Scores(weighted([(1.0, parts["length"]), (-0.5, parts["first"])]), parts))
        return found


PARTS = [RewardPart("length", 1.0, None, None), RewardPart("mine", -0.5, "first", None)]


def test_each_of_several_rewards_is_reported_apart(monkeypatch):
    # the first group: tokens 2 1 (totals 2 - 3 and 1), first tokens 6 and, odd, none; the second: 1 3, both rated: 1 - 4 and 3 - 5
    runs.scripted(monkeypatch, [[ended(6, 6), ended(7)], [ended(8), ended(10, 10, 10)]])
    run = train_policy(fitting_prompts(2), TwoParts(), group=2, accumulation=2, reward=PARTS).run
    (row,) = run.steps
    assert tuple(row) == (*CURVE, "part_length", "part_first")
    assert row["mean_reward"] == (-1 + 1 - 3 - 2) / 4
    assert (row["part_length"], row["part_first"]) == (1.75, (6 + 9) / 2)
    assert run.history[0]["parts"] == {
        "length": {"mean_reward": 1.75, "reward_spread": (0.5 + 1) / 2, "abstained": 0.0},
        "first": {"mean_reward": 7.5, "reward_spread": (0 + 1) / 2, "abstained": 0.25},
    }


def test_a_part_that_abstains_throughout_has_no_mean(monkeypatch):
    runs.scripted(monkeypatch, [[ended(5, 6), ended(7)]])
    run = train_policy(fitting_prompts(1), TwoParts(), group=2, reward=PARTS).run
    assert run.steps[0]["part_first"] is None
    assert run.history[0]["parts"]["first"] == {"mean_reward": None, "reward_spread": None, "abstained": 1.0}
    assert run.refused_groups == 0


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_group_in_which_a_completion_has_no_reward_is_refused_whole_and_counted(monkeypatch, accumulation):
    script = [[ended(6, 6), ended(7)], [ended(8), ended(50, 10, 10)], [ended(9), ended(10, 10)]]
    runs.scripted(monkeypatch, script)
    changes = {"group": 2, "accumulation": accumulation, "reward": PARTS, "iterations": 2, "aggregation": "tokens"}
    with monkeypatch.context() as patched, runs.watching(patched, grpo_loop) as seen:
        trained = train_policy(fitting_prompts(3), TwoParts(), **changes)
    assert (trained.run.refused_groups, trained.run.unrated_groups) == (2, 2)
    assert [(entry["groups"], entry["completions"]) for entry in trained.run.history] == [(2, 4)] * 2
    line = "prompt 4: draw 1 has no reward, since none rates it, so the group is refused"
    assert [said for said in trained.said if "no reward" in said] == [f"iteration {number}/2 {line}" for number in (1, 2)]
    # what is left is stepped on as if the group had not been there
    runs.scripted(monkeypatch, [script[0], script[2]])
    prompts = fitting_prompts(3)
    alone = prompts._replace(ids=[prompts.ids[0], prompts.ids[2]], indexes=[prompts.indexes[0], prompts.indexes[2]])
    with runs.watching(monkeypatch, grpo_loop) as again:
        train_policy(alone, TwoParts(), **changes)
    assert all(torch.equal(mine, their) for mine, their in zip(seen[0].gradients, again[0].gradients, strict=True))


def test_an_iteration_without_a_single_reward_fails_with_what_to_do(monkeypatch):
    runs.scripted(monkeypatch, [[ended(50), ended(7)]])
    with pytest.raises(TrainingError) as refused:
        train_policy(fitting_prompts(2), TwoParts(), group=2, reward=PARTS)
    assert str(refused.value).startswith(
        "grpo.reward: iteration 1/1: every group was refused: a completion of each has no reward, since all that there are abstained, "
        "or was empty (2 and 0 groups so far); give rows the columns that the reward reads"
    )


# Refused groups


def test_an_empty_completion_refuses_its_group_and_an_empty_window_takes_no_step(monkeypatch):
    """3 prompts, a step each; the second group is refused in both iterations."""
    empty = [ended(5, 6), ended(), ended(7), ended(8)]
    whole = [ended(5, 6), cut(9, 9, 9), ended(7), ended(8)]
    runs.scripted(monkeypatch, [whole, empty, whole])
    with runs.watching(monkeypatch, grpo_loop) as seen:
        trained = train_policy(fitting_prompts(3), iterations=2, warmup_steps=4, empty_completions="refuse")
    run = trained.run
    assert run.refused_groups == 2
    assert run.planned_steps == 6
    assert [row["step"] for row in run.steps] == [1, 3, 4, 6]
    # the schedule follows the planned index: 1/4, 3/4, 4/4 of the peak, and half a cosine from there
    assert [row["learning_rate"] for row in run.steps] == pytest.approx([5e-3 / 4, 5e-3 * 3 / 4, 5e-3, 5e-3 / 2])
    assert [(snapshot.planned, snapshot.where) for snapshot in seen] == [
        (step - 1, f"iteration {(step + 2) // 3}/2 step {step}/6") for step in (1, 3, 4, 6)
    ]
    assert [(entry["groups"], entry["completions"]) for entry in run.history] == [(2, 8), (2, 8)]
    refused = "prompt 4: a sampled completion was empty, so this group has nothing to score; the group is refused"
    assert [line for line in trained.said if "empty" in line] == [f"iteration 1/2 {refused}", f"iteration 2/2 {refused}"]


def test_an_iteration_in_which_every_group_is_refused_fails(monkeypatch):
    whole, empty = [ended(5), ended(6, 7)], [ended(), ended(6)]
    runs.scripted(monkeypatch, [whole, empty, empty, empty])
    with pytest.raises(
        TrainingError,
        match=r"^grpo\.empty_completions: iteration 2/3: every group was refused: a sampled completion was empty, "
        "so this group has nothing to score",
    ):
        train_policy(fitting_prompts(2), group=2, iterations=3, empty_completions="refuse")


def test_score_takes_a_lone_end_token_as_the_action_it_is(monkeypatch):
    script = [[ended(), ended(5, 6), ended(7), cut(8, 9, 10)]]
    runs.scripted(monkeypatch, script)
    with runs.watching(monkeypatch, grpo_loop) as seen:
        trained = train_policy(fitting_prompts(1), empty_completions="score")
    (row,) = trained.run.steps
    assert row["mean_completion_tokens"] == row["mean_reward"] == 1.5  # (0 + 2 + 1 + 3)/4
    assert trained.run.refused_groups == 0
    groups = [(fitting_prompts(1).ids[0], script[0], [0.0, 2.0, 1.0, 3.0])]
    _, gradients = expected_gradients(trained.adapters, seen[0], groups, runs.grpo_settings())
    for found, expected in zip(seen[0].gradients, gradients, strict=True):
        assert (found - expected).norm() <= 1e-4 * expected.norm() + 1e-7


# Numbers that are not finite


@pytest.mark.parametrize(("broken", "accumulation"), [(float("nan"), 1), (float("inf"), 2), (-float("inf"), 1)])
def test_a_reward_that_is_not_finite_stops_with_its_iteration_prompt_and_draw(monkeypatch, broken, accumulation):
    """In the second group of the second iteration: the weights are as the last whole window left them."""
    good, bad = [1.0, 2.0, 3.0], [1.0, 2.0, broken]
    adapted = tiny.adapted(runs.frozen_toy())
    rewards = Written([good, good, good, bad])
    with runs.watching(monkeypatch, grpo_loop) as seen, pytest.raises(TrainingError) as stopped:
        train_policy(fitting_prompts(2), rewards, adapted=adapted, group=3, iterations=3, accumulation=accumulation)
    assert str(stopped.value) == f"iteration 2/3 prompt 4 draw 2: the reward is {broken}, which is not finite; no weight was moved"
    assert len(seen) == {1: 3, 2: 1}[accumulation]
    assert all(torch.equal(now, then) for now, then in zip(policy_tensors(adapted), seen[-1].after, strict=True))


def policy_tensors(adapted):
    return [factor.detach().clone() for factor in adapted.factors("policy").values()]


class Exploded(Adapters):
    """Adapters whose B does not start at zero: a thousand times too large, or at the scale that a test sets."""

    scale = 1000.0

    def add_fresh(self, name, plan, seed):
        factors = super().add_fresh(name, plan, seed)
        runs.warm(self, name, scale=self.scale)
        self.start = policy_tensors(self)
        return factors


def test_a_huge_adapter_still_gives_finite_gradients_and_weights():
    adapted = Exploded(tiny.forward(runs.frozen_toy()))
    trained = train_policy(fitting_prompts(2), adapted=adapted)
    assert all(math.isfinite(row["grad_norm"]) and math.isfinite(row["loss"]) for row in trained.run.steps)
    assert all(np.isfinite(tensor).all() for tensor in trained.tensors.values())


@pytest.mark.parametrize("learning_rate", [1.0, 1e30])
def test_an_absurd_learning_rate_ends_in_finite_weights_or_a_clear_stop(learning_rate):
    adapted = tiny.adapted(runs.frozen_toy())
    try:
        train_policy(fitting_prompts(2), adapted=adapted, iterations=2, learning_rate=learning_rate)
    except TrainingError as stopped:
        assert "not finite" in str(stopped)
    assert all(torch.isfinite(tensor).all() for tensor in policy_tensors(adapted))


def test_a_kl_beyond_float32_stops_before_the_optimizer_moves(monkeypatch):
    """Log-probabilities that overflow k3: on tokens that the moved policy all but excludes."""
    runs.scripted(monkeypatch, [[ended(5, 6), ended(7)]])
    adapted = Exploded(tiny.forward(runs.frozen_toy()))
    with torch.no_grad():
        adapted.model.lm_head.weight.mul_(1e4)
    with pytest.raises(
        TrainingError, match=r"^iteration 1/1 prompt 3 draw [01]: the loss is not finite .*no weight was moved; no step was taken yet"
    ):
        train_policy(fitting_prompts(1), group=2, adapted=adapted)
    assert all(torch.equal(now, then) for now, then in zip(policy_tensors(adapted), adapted.start, strict=True))


def test_a_policy_whose_distribution_is_not_finite_stops_with_its_prompt_and_draw():
    adapted = Exploded(tiny.forward(runs.frozen_toy()))
    adapted.scale = float("inf")
    with pytest.raises(
        TrainingError,
        match=r"^iteration 1/1 prompt 3 draw 0: the policy's distribution is not finite at position 0; no step was taken yet, ",
    ):
        train_policy(fitting_prompts(1), adapted=adapted)


@pytest.mark.parametrize("tokens_of_a_pass", [1, 10_000])
def test_a_gradient_that_is_not_finite_stops_with_its_prompt_and_draw(monkeypatch, tokens_of_a_pass):
    """Of the second prompt's third draw alone; its loss is finite."""
    bad = 11
    runs.scripted(monkeypatch, [[ended(5, 6), ended(7), ended(8, 9, 10)], [ended(5), ended(6, 7), ended(bad, 5)]])
    adapted = tiny.adapted(runs.frozen_toy())
    adapted.passes.fits = lambda groups: sum(len(group.prompt) for group in groups) <= tokens_of_a_pass
    scores = adapted.passes.token_scores

    def poisoning(groups, temperature):
        found = scores(groups, temperature)
        marks = [[bad in completion for completion in group.completions for _ in completion] for group in groups]
        return [one._replace(log_probs=runs.poisoned(one.log_probs, mark)) for one, mark in zip(found, marks, strict=True)]

    monkeypatch.setattr(adapted.passes, "token_scores", poisoning)
    with pytest.raises(TrainingError) as stopped:
        train_policy(fitting_prompts(2), adapted=adapted, group=3, accumulation=2)
    assert str(stopped.value).startswith(
        "iteration 1/1 prompt 4 draw 2: the gradient is not finite (nan); no weight was moved; no step was taken yet, so look at grpo.alpha"
    )
    fresh = tiny.adapted(runs.frozen_toy()).add_fresh("policy", runs.toy_plan(adapted.model), 42)
    assert all(torch.equal(now, then) for now, then in zip(policy_tensors(adapted), fresh.values(), strict=True))


def test_reward_sums_are_kept_apart_from_the_reference_and_the_policy():
    """The adapters are switched, never mixed: two runs whose rewards agree give the same bytes, whether or not a model scored."""
    adapted = tiny.adapted(runs.frozen_toy())
    reward_model = RewardModel.fresh(adapted, runs.toy_plan(adapted.model), 3)
    runs.warm(adapted, "reward")
    with torch.no_grad():
        reward_model.head.fill_(0.5)
    given = []

    class Kept:
        def scores(self, groups):
            found = model_scorer(adapted, reward_model).scores(groups)
            given.extend(one.total.values for one in found)
            return found

    scored = train_policy(fitting_prompts(2), Kept(), adapted=adapted)
    written = train_policy(fitting_prompts(2), Written([rewards.tolist() for rewards in given]))
    assert len(set(itertools.chain(*(rewards.tolist() for rewards in given)))) > 4
    assert scored.bytes() == written.bytes()
    assert scored.run.steps == written.run.steps


@pytest.mark.parametrize("limits", [{}, {"short_tokens": 0, "copied_tokens": 0}])
def test_three_steps_in_packed_rows_are_those_in_padded_rows(limits: dict[str, int]):
    def limited(model: PreTrainedModel) -> Passes:
        return PackedPasses(model, tiny.RUNTIME.logits_chunk, **limits)

    every = runs.fitting_prompts()
    prompts = every._replace(ids=every.ids[:3], indexes=[0, 1, 2])  # draws of which some end, so that there is something to learn
    packed_run, padded_run = (
        runs.train_policy(adapted=Adapters(way(runs.frozen_toy())), prompts=prompts, iterations=1) for way in (limited, PaddedPasses)
    )
    assert len(packed_run.run.steps) == 3
    assert packed_run.run.steps[-1]["mean_kl"] > 1e-4
    for ours, theirs in zip(packed_run.run.steps, padded_run.run.steps, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
    for name, tensor in padded_run.tensors.items():
        np.testing.assert_allclose(packed_run.tensors[name], tensor, rtol=1e-5, atol=1e-5)

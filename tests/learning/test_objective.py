"""The two objectives: values by hand, and loss and gradient against plain Python loops in float64."""

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.learning.objective import (
    COMPLETION,
    FIXED,
    GROUP,
    NONE,
    SEQUENCE,
    TOKEN,
    TOKENS,
    Advantages,
    bradley_terry,
    completion_means,
    counted,
    group_advantages,
    group_loss,
    kl_k3,
    ratios,
    spread,
)

LN2_FLOAT32 = 0.6931471824645996


def positive_zero(value: float) -> bool:
    return value == 0.0 and math.copysign(1.0, value) == 1.0


def advantages(rewards, scale=GROUP):
    return group_advantages(torch.tensor(rewards, dtype=torch.float64), scale)


@dataclass
class Said:
    """What section `grpo` says of the loss."""

    beta: float
    importance_sampling_level: str = TOKEN
    clip_low: float = 0.2
    clip_high: float = 0.2


def loss_of(policy, reference, sizes, given, beta, sampler=None, kept=None, aggregation=COMPLETION, cap=16, mean_tokens=0.0, **said):
    """The loss of one group whose completions have these sizes."""
    lengths = torch.tensor(sizes)
    kept = torch.tensor([True] * len(sizes) if kept is None else kept)
    count = counted(lengths, kept, aggregation, cap, mean_tokens)
    return group_loss(policy, reference, sampler, count, given, Said(beta, **said))


# Advantages


def test_advantages_are_deviations_over_the_populations_standard_deviation():
    # mean 3, deviations -2 -1 0 3, their squares' mean (4+1+0+9)/4 = 3.5 (over 3 it would be 4.67)
    found = advantages([1.0, 2.0, 3.0, 6.0]).values()
    assert found.tolist() == pytest.approx([deviation / math.sqrt(3.5) for deviation in (-2, -1, 0, 3)])


def test_no_epsilon_shrinks_the_advantages_of_close_rewards():
    # of two rewards one is always one deviation above the mean and one below; 1e-4 in the denominator would make 1e-8 of it
    assert advantages([5.0, 5.0 + 2**-40]).values().tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(("reward", "size"), [(2.7, 16), (0.1, 8), (-0.37, 7), (0.0, 4)])
def test_equal_rewards_give_exactly_zero_advantage(reward, size):
    found = advantages([reward] * size)
    assert found.denominator == 0.0
    assert all(positive_zero(value) for value in found.values().tolist())


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(2, 16))
def test_equal_rewards_of_any_size_give_exactly_zero_advantage(reward, size):
    assert not advantages([reward] * size).values().any()


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=16).filter(lambda rewards: len(set(rewards)) > 1))
def test_advantages_are_those_of_numpy(rewards):
    plain = np.array(rewards, dtype=np.float64)
    assert advantages(rewards).values().tolist() == pytest.approx((plain - plain.mean()) / plain.std(), abs=1e-9)


def test_a_reward_of_zero_is_a_reward():
    # mean 1/4, variance (3 * 1/16 + 9/16) / 4 = 3/16: -1/4 and 3/4 over sqrt(3)/4
    found = advantages([0.0, 0.0, 1.0, 0.0]).values().tolist()
    assert found == pytest.approx([-1 / math.sqrt(3), -1 / math.sqrt(3), 3 / math.sqrt(3), -1 / math.sqrt(3)])


def test_eight_rewards_that_differ_by_a_hundredth_around_20_get_eight_advantages():
    rewards = torch.tensor([20.0 + step / 100 for step in range(8)], dtype=torch.float32).double()  # in bfloat16 two are left
    values = group_advantages(rewards).values()
    assert len(set(values.tolist())) == 8
    assert values.tolist() == pytest.approx([(step - 3.5) / math.sqrt(5.25) for step in range(8)], abs=1e-3)


# The KL estimate


def test_k3_by_hand():
    # gap ln 2: 2 - 1 - ln 2; gap -ln 2: 1/2 - 1 + ln 2
    found = kl_k3(torch.tensor([0.0, math.log(2)], dtype=torch.float64), torch.tensor([math.log(2), 0.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([1 - math.log(2), math.log(2) - 0.5])


@pytest.mark.parametrize("value", [0.0, -0.0, -1.25, -87.3])
def test_k3_is_exactly_zero_where_policy_and_reference_agree(value):
    assert positive_zero(kl_k3(torch.tensor([value]), torch.tensor([value])).item())


@pytest.mark.parametrize("reach", [1e-8, 1e-6, 1e-4, 1e-2, 1.0, 60.0])
def test_k3_is_never_negative_in_float32(reach):
    gaps = torch.linspace(-reach, reach, 20001)
    assert (kl_k3(torch.zeros(()), gaps) >= 0).all()


@given(st.lists(st.floats(-60, 0, width=32), min_size=1, max_size=8), st.floats(-(2**-10), 2**-10, width=32))
def test_k3_is_never_negative_near_the_reference(policy, gap):
    policy = torch.tensor(policy)
    assert (kl_k3(policy, policy + gap) >= 0).all()


# Means over tokens


def test_each_completion_is_averaged_over_its_own_tokens():
    means = completion_means(torch.tensor([1.0, 2.0, 6.0, 5.0, 0.5, 0.25]), torch.tensor([3, 1, 2]))
    assert means.tolist() == [3.0, 5.0, 0.375]
    assert means.dtype == torch.float64


# The group's loss


def ragged(seed: int, sizes, dtype=torch.float64):
    """Log-probabilities of policy and reference for completions of these sizes."""
    generator = torch.Generator().manual_seed(seed)
    policy = -3 * torch.rand(sum(sizes), generator=generator, dtype=dtype)
    return policy.requires_grad_(), policy.detach() + 0.5 * torch.randn(sum(sizes), generator=generator, dtype=dtype)


def plain_loss(policy, reference, sizes, rewards, beta):
    """The definition, a token at a time; `policy` is a list of float64 scalars that carry gradient."""
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    token, total = 0, 0.0
    for size, reward in zip(sizes, rewards, strict=True):
        advantage = (reward - mean) / deviation if deviation else 0.0
        of_completion = 0.0
        for _ in range(size):
            ratio = torch.exp(policy[token] - policy[token].item())
            gap = reference[token].item() - policy[token]
            kl = torch.exp(gap) - gap - 1
            of_completion = of_completion - (ratio * advantage - beta * kl)
            token += 1
        total = total + of_completion / size
    return total / len(sizes)


SIZES = [3, 1, 7, 2, 5]
REWARDS = [0.25, -1.5, 2.0, 0.1, 0.0]


@pytest.mark.parametrize("beta", [0.0, 0.04, 2.5])
@pytest.mark.parametrize("rewards", [REWARDS, [0.7] * 5])
def test_loss_and_gradient_are_those_of_plain_loops(beta, rewards):
    policy, reference = ragged(1, SIZES)
    loss = loss_of(policy, reference, SIZES, advantages(rewards), beta).loss
    loss.backward()
    leaves = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in policy.tolist()]
    wanted = plain_loss(leaves, reference, SIZES, rewards, beta)
    gradient = torch.autograd.grad(wanted, leaves)
    torch.testing.assert_close(loss.detach(), wanted.detach(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(policy.grad, torch.stack(gradient), rtol=1e-12, atol=1e-14)


def test_the_gradient_by_hand():
    # of token t in completion i of length L: -A_i/(G*L) + beta*(1 - exp(gap))/(G*L), as k3' = 1 - exp(gap); advantages 1 and -1
    policy = torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.0, -1.0 + math.log(2), -2.0], dtype=torch.float64)
    loss_of(policy, reference, [2, 1], advantages([3.0, 1.0]), 0.5).loss.backward()
    assert policy.grad.tolist() == pytest.approx([-1 / 4, -1 / 4 + 0.5 * (1 - 2) / 4, 1 / 2])


def test_the_leash_is_a_mean_over_each_completions_own_tokens():
    # gaps ln 2 on the first of two tokens, 0 elsewhere: k3 of 1 - ln 2, halved by its completion and halved by the group
    policy = torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64)
    parts = loss_of(policy, policy + torch.tensor([math.log(2), 0.0, 0.0]), [2, 1], advantages([1.0, 1.0]), 3.0)
    assert parts.loss.item() == pytest.approx(3 * (1 - math.log(2)) / 4)


def test_a_completion_counts_the_same_whatever_its_length():
    # 1 and 9 tokens with advantages 1 and -1: -(1 - 1)/2; a mean over all ten tokens would be 0.8
    policy, _ = ragged(3, [1, 9], torch.float32)
    assert loss_of(policy, policy.detach(), [1, 9], advantages([1.0, -1.0]), 0.0).loss.item() == 0.0


def test_the_ratio_is_exactly_1():
    # advantages 0, 0 and -3/4 by fiat: the loss is -(0 + 0 - 3/4)/3 = 1/4 to the last bit only if the ratio of both tokens is 1
    policy, _ = ragged(4, [1, 1, 2], torch.float32)
    given = Advantages(torch.tensor([0.0, 0.0, -0.75], dtype=torch.float64), 1.0)
    assert loss_of(policy, policy.detach(), [1, 1, 2], given, 0.0).loss.item() == 0.25


def drawn(draw: random.Random, group: int) -> tuple[list[int], torch.Tensor]:
    """Lengths of a group's completions, and float32 log-probabilities of their tokens."""
    sizes = [draw.randint(1, 16) for _ in range(group)]
    return sizes, ragged(group, sizes, torch.float32)[0]


@pytest.mark.parametrize("group", range(2, 10))
def test_under_whole_rewards_the_first_loss_is_exactly_zero(group):
    """Whole rewards such as lengths: numerators are whole, and whole numbers cancel without rounding, whatever the lengths."""
    draw = random.Random(group)
    for _ in range(20):
        sizes, policy = drawn(draw, group)
        rewards = [float(size - draw.randint(0, 1)) for size in sizes]
        parts = loss_of(policy, policy.detach(), sizes, advantages(rewards), 0.04)
        assert positive_zero(parts.loss.item())


@pytest.mark.parametrize("group", range(2, 10))
def test_under_close_rewards_around_20_the_first_loss_is_below_a_millionth(group):
    draw = random.Random(group)
    for _ in range(20):
        sizes, policy = drawn(draw, group)
        rewards = torch.tensor([20 + draw.uniform(-1e-3, 1e-3) for _ in sizes], dtype=torch.float32).double()
        loss = loss_of(policy, policy.detach(), sizes, group_advantages(rewards), 0.04).loss.item()
        assert abs(loss) < 1e-6


def test_a_flat_group_without_a_leash_has_no_gradient():
    policy, reference = ragged(5, SIZES, torch.float32)
    loss_of(policy, reference, SIZES, advantages([2.7] * 5), 0.0).loss.backward()
    assert not policy.grad.any()


# Variants: advantages


def test_unscaled_advantages_are_deviations_from_the_mean():
    # mean 3 (Dr. GRPO, arXiv:2503.20783)
    assert advantages([1.0, 2.0, 3.0, 6.0], NONE).values().tolist() == [-2.0, -1.0, 0.0, 3.0]


def test_a_group_whose_deviation_is_one_has_the_same_advantages_unscaled_to_the_last_bit():
    rewards = [1.0, -1.0, 1.0, -1.0]
    ours, unscaled = advantages(rewards), advantages(rewards, NONE)
    assert ours.denominator == unscaled.denominator == 4.0
    assert torch.equal(ours.numerator, unscaled.numerator)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(2, 16))
def test_equal_rewards_give_exactly_zero_unscaled_advantage(reward, size):
    assert not advantages([reward] * size, NONE).values().any()
    assert spread(torch.full((size,), reward, dtype=torch.float64)) == 0.0


def test_the_spread_is_the_populations_deviation():
    # of 1 and 3: 1; the sample's would be sqrt 2
    assert spread(torch.tensor([1.0, 3.0], dtype=torch.float64)) == 1.0


# Variants: aggregation


def test_what_each_aggregation_divides_by():
    lengths, kept = torch.tensor([3, 1, 2]), torch.tensor([True, True, True])
    assert counted(lengths, kept, COMPLETION, 8, 2.5).divisors.tolist() == [3.0, 1.0, 2.0]
    assert counted(lengths, kept, TOKENS, 8, 2.5).divisors.tolist() == [2.5, 2.5, 2.5]
    assert counted(lengths, kept, FIXED, 8, 2.5).divisors.tolist() == [8.0, 8.0, 8.0]
    assert counted(lengths, torch.tensor([True, False, True]), COMPLETION, 8, 2.5).divisors.tolist() == [3.0, math.inf, 2.0]


@pytest.mark.parametrize(
    ("aggregation", "divisor"),
    [
        (TOKENS, 18),  # DAPO: all tokens of the window count the same
        (FIXED, 5 * 20),  # Dr. GRPO: the cap, whatever the lengths
    ],
)
def test_token_mean_and_fixed_length_sum_all_tokens_and_divide_once(aggregation, divisor):
    policy, reference = ragged(7, SIZES)
    given = advantages(REWARDS)
    loss = loss_of(policy, reference, SIZES, given, 0.3, aggregation=aggregation, cap=20, mean_tokens=18 / 5).loss
    wanted, token = 0.0, 0
    for size, advantage in zip(SIZES, given.values().tolist(), strict=True):
        for _ in range(size):
            gap = reference[token].item() - policy[token].item()
            wanted -= advantage - 0.3 * (math.exp(gap) - gap - 1)
            token += 1
    assert loss.item() == pytest.approx(wanted / divisor, rel=1e-12)


def test_by_the_fixed_length_by_hand():
    # advantages 1 and -1 on 1 and 3 tokens, cap 4: -(1*1 - 1*3)/4/2; by its own tokens it would be 0, by all four 2/4
    policy, _ = ragged(3, [1, 3])
    parts = [
        loss_of(policy, policy.detach(), [1, 3], advantages([1.0, -1.0]), 0.0, aggregation=one, cap=4, mean_tokens=2.0).loss.item()
        for one in (FIXED, COMPLETION, TOKENS)
    ]
    assert parts == [0.25, 0.0, 0.5]


@pytest.mark.parametrize("aggregation", [TOKENS, FIXED])
def test_where_all_completions_are_as_long_as_the_cap_every_aggregation_gives_the_same_bits(aggregation):
    policy, reference = ragged(8, [6] * 4, torch.float32)
    gradients = []
    for one in (COMPLETION, aggregation):
        loss = loss_of(policy, reference, [6] * 4, advantages(REWARDS[:4]), 0.04, aggregation=one, cap=6, mean_tokens=6.0).loss
        gradients.append((loss.detach(), *torch.autograd.grad(loss, policy)))
    assert all(torch.equal(mine, their) for mine, their in zip(*gradients, strict=True))


# Variants: completions left out


def test_a_completion_left_out_adds_nothing_and_stays_in_the_mean():
    # advantages 1 and -1, one token each; without the second, -(1 + 0)/2, and no gradient of its own
    policy = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    parts = loss_of(policy, policy.detach() + 0.5, [1, 1], advantages([3.0, 1.0]), 0.0, kept=[True, False])
    parts.loss.backward()
    assert parts.loss.item() == -0.5
    assert policy.grad.tolist() == [-0.5, 0.0]


def test_where_all_are_left_out_nothing_is_learned():
    policy, reference = ragged(9, SIZES, torch.float32)
    for aggregation in (COMPLETION, TOKENS, FIXED):
        parts = loss_of(policy, reference, SIZES, advantages(REWARDS), 0.5, kept=[False] * 5, aggregation=aggregation)
        (gradient,) = torch.autograd.grad(parts.loss, policy)
        assert parts.loss.item() == 0.0
        assert not gradient.any()


# Variants: several updates, clipped


def test_a_ratio_is_clipped_where_it_would_gain_more_and_never_where_it_loses():
    # ratios 1.5 and 0.5, twice; clipped at 0.9 and 1.3. Advantage 1: min(1.5, 1.3), min(0.5, 0.9); -1: min(-1.5, -1.3), min(-0.5, -0.9)
    sampler = torch.full((4,), -2.0, dtype=torch.float64)
    policy = (sampler + torch.tensor([1.5, 0.5, 1.5, 0.5]).log()).requires_grad_()
    given = Advantages(torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64), 1.0)
    parts = loss_of(policy, sampler, [1, 1, 1, 1], given, 0.0, sampler, clip_low=0.1, clip_high=0.3)
    parts.loss.backward()
    assert parts.loss.item() == pytest.approx(-(1.3 + 0.5 - 1.5 - 0.9) / 4)
    # what is clipped has no gradient; of the others it is -A * ratio / G
    assert policy.grad.tolist() == pytest.approx([0.0, -0.5 / 4, 1.5 / 4, 0.0])
    assert parts.clipped.item() == 0.5


def test_the_first_update_cannot_be_clipped_however_narrow_the_clip():
    policy, reference = ragged(10, SIZES, torch.float32)
    wide, narrow = (loss_of(policy, reference, SIZES, advantages(REWARDS), 0.04, clip_low=clip, clip_high=clip) for clip in (1.0, 1e-9))
    assert torch.equal(wide.loss, narrow.loss)
    assert narrow.clipped.item() == 0.0
    # and it is what a ratio of 1, held against the same log-probabilities, gives
    held = loss_of(policy, reference, SIZES, advantages(REWARDS), 0.04, policy.detach())
    assert torch.equal(held.loss, wide.loss)
    assert all(
        torch.equal(*pair) for pair in zip(torch.autograd.grad(held.loss, policy), torch.autograd.grad(wide.loss, policy), strict=True)
    )


def test_a_sequences_ratio_is_the_geometric_mean_of_its_tokens_ratios():
    # of 2 and 8: 4; of 3 alone: 3 (GSPO, arXiv:2507.18071, eq. 7)
    sampler = torch.full((3,), -5.0, dtype=torch.float64)
    policy = sampler + torch.tensor([2.0, 8.0, 3.0]).double().log()
    assert ratios(policy, sampler, torch.tensor([2, 1]), SEQUENCE).tolist() == pytest.approx([4.0, 4.0, 3.0])
    assert ratios(policy, sampler, torch.tensor([2, 1]), TOKEN).tolist() == pytest.approx([2.0, 8.0, 3.0])


def test_a_sequence_is_clipped_as_a_whole():
    # tokens' ratios 2 and 1/2 make a sequence's 1, which is not clipped; the other sequence's is 2, clipped at 1.2
    sampler = torch.full((4,), -5.0, dtype=torch.float64)
    policy = (sampler + torch.tensor([2.0, 0.5, 2.0, 2.0]).double().log()).requires_grad_()
    given = Advantages(torch.tensor([1.0, 1.0], dtype=torch.float64), 1.0)
    parts = loss_of(policy, sampler, [2, 2], given, 0.0, sampler, importance_sampling_level=SEQUENCE)
    parts.loss.backward()
    assert parts.loss.item() == pytest.approx(-(1.0 + 1.2) / 2)
    assert policy.grad.tolist() == pytest.approx([-1 / 4, -1 / 4, 0.0, 0.0])  # ratio / (G * tokens)
    assert parts.clipped.item() == 0.5
    by_token = loss_of(policy, sampler, [2, 2], given, 0.0, sampler)
    assert by_token.clipped.item() == 0.75


# Bradley-Terry


def test_a_pair_of_equal_scores_costs_float32_ln_2():
    assert bradley_terry(torch.zeros(3), torch.zeros(3)).tolist() == [LN2_FLOAT32] * 3


def test_the_pairwise_loss_by_hand():
    # sigmoid(ln 3) = 3/4, sigmoid(-ln 3) = 1/4
    margin = math.log(3)
    found = bradley_terry(torch.tensor([margin, 5.0]), torch.tensor([0.0, 5.0 + margin]))
    assert found.tolist() == pytest.approx([math.log(4 / 3), math.log(4)], rel=1e-6)


def test_the_pairwise_loss_of_a_huge_margin_is_finite():
    assert bradley_terry(torch.tensor([1e4, -1e4]), torch.zeros(2)).tolist() == [0.0, 1e4]


def test_the_gradient_of_the_pairwise_loss_by_hand():
    # d/dmargin of -log sigmoid is sigmoid - 1: -1/4 at ln 3, -1/2 at 0; of the rejected score the opposite
    chosen = torch.tensor([math.log(3), 2.0], requires_grad=True)
    rejected = torch.tensor([0.0, 2.0], requires_grad=True)
    bradley_terry(chosen, rejected).sum().backward()
    assert chosen.grad.tolist() == pytest.approx([-0.25, -0.5])
    assert rejected.grad.tolist() == pytest.approx([0.25, 0.5])

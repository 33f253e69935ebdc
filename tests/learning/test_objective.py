"""The two objectives: values by hand, and loss and gradient against plain Python loops in float64."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.learning.objective import Advantages, bradley_terry, completion_means, group_advantages, group_loss, kl_k3

LN2_FLOAT32 = 0.6931471824645996


def positive_zero(value: float) -> bool:
    return value == 0.0 and math.copysign(1.0, value) == 1.0


def advantages(rewards):
    return group_advantages(torch.tensor(rewards, dtype=torch.float64))


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
    loss = group_loss(policy, reference, torch.tensor(SIZES), advantages(rewards), beta).loss
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
    group_loss(policy, reference, torch.tensor([2, 1]), advantages([3.0, 1.0]), 0.5).loss.backward()
    assert policy.grad.tolist() == pytest.approx([-1 / 4, -1 / 4 + 0.5 * (1 - 2) / 4, 1 / 2])


def test_the_reported_kl_is_weighted_as_in_the_loss():
    # gaps ln 2 on the first of two tokens, 0 elsewhere: k3 of 1 - ln 2, halved by its completion and halved by the group
    policy = torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64)
    parts = group_loss(policy, policy + torch.tensor([math.log(2), 0.0, 0.0]), torch.tensor([2, 1]), advantages([1.0, 1.0]), 3.0)
    assert parts.kl.item() == pytest.approx((1 - math.log(2)) / 4)
    assert parts.loss.item() == pytest.approx(3 * (1 - math.log(2)) / 4)


def test_a_completion_counts_the_same_whatever_its_length():
    # 1 and 9 tokens with advantages 1 and -1: -(1 - 1)/2; a mean over all ten tokens would be 0.8
    policy, _ = ragged(3, [1, 9], torch.float32)
    assert group_loss(policy, policy.detach(), torch.tensor([1, 9]), advantages([1.0, -1.0]), 0.0).loss.item() == 0.0


def test_the_ratio_is_exactly_1():
    # advantages 0, 0 and -3/4 by fiat: the loss is -(0 + 0 - 3/4)/3 = 1/4 to the last bit only if the ratio of both tokens is 1
    policy, _ = ragged(4, [1, 1, 2], torch.float32)
    given = Advantages(torch.tensor([0.0, 0.0, -0.75], dtype=torch.float64), 1.0)
    assert group_loss(policy, policy.detach(), torch.tensor([1, 1, 2]), given, 0.0).loss.item() == 0.25


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
        parts = group_loss(policy, policy.detach(), torch.tensor(sizes), advantages(rewards), 0.04)
        assert positive_zero(parts.loss.item())
        assert positive_zero(parts.kl.item())


@pytest.mark.parametrize("group", range(2, 10))
def test_under_close_rewards_around_20_the_first_loss_is_below_a_millionth(group):
    draw = random.Random(group)
    for _ in range(20):
        sizes, policy = drawn(draw, group)
        rewards = torch.tensor([20 + draw.uniform(-1e-3, 1e-3) for _ in sizes], dtype=torch.float32).double()
        loss = group_loss(policy, policy.detach(), torch.tensor(sizes), group_advantages(rewards), 0.04).loss.item()
        assert abs(loss) < 1e-6


def test_a_flat_group_without_a_leash_has_no_gradient():
    policy, reference = ragged(5, SIZES, torch.float32)
    group_loss(policy, reference, torch.tensor(SIZES), advantages([2.7] * 5), 0.0).loss.backward()
    assert not policy.grad.any()


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

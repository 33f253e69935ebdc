"""The two objectives, as pure functions of tensors: Bradley-Terry and the group-relative policy loss with its KL leash.

Where codebases differ, ours: the group's deviation is the population's (ddof 0) with no epsilon, as in GRPO-Zero (TRL
divides by the sample's, ddof 1, plus 1e-4); a completion's tokens are averaged first, then the group's completions
(DeepSeekMath, arXiv:2402.03300, eq. 3); the KL estimate is k3 (Schulman, http://joschu.net/blog/kl-approx.html),
not multiplied by the ratio (TRL's use_bias_correction_kl, on by default there, which changes its gradient and not its
value). One inner update per batch of draws, so the ratio is exactly 1 and nothing is clipped; it stays in the loss for its
gradient.

G completions of one prompt, N their tokens one after the other (no padding, so nothing has to be masked), B pairs.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Advantages(NamedTuple):
    """A group's advantages as a fraction: numerator / denominator."""

    numerator: Tensor
    """G*r_i - sum(r), float64 [G]; whole where the rewards are, so that sums of it are exact."""
    denominator: float
    """G*std, at least 0; where it is 0 every numerator is exactly 0."""

    def of(self, draws: slice) -> "Advantages":
        """Those of some draws of the group."""
        return Advantages(self.numerator[draws], self.denominator)

    def values(self) -> Tensor:
        """The advantages themselves, float64 [G]; exactly zero in a group of equal rewards."""
        return self.numerator / self.denominator if self.denominator else self.numerator


class GroupLoss(NamedTuple):
    """The loss of one group and its parts, all float64 scalars; `loss` carries the gradient."""

    loss: Tensor
    kl: Tensor


def bradley_terry(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(chosen - rejected) of each pair, nats; scores float32 [B], twice (Bradley and Terry, 1952)."""
    return -functional.logsigmoid(chosen - rejected)


def group_advantages(rewards: Tensor) -> Advantages:
    """(r - mean r) / std r of one group, as a fraction; rewards float64 [G], ddof 0, no epsilon.

    The first reward is subtracted first: without it a group of equal rewards centres to rounding noise, which the
    division then blows up (sixteen rewards of 2.7 would get advantages of 1e-2).
    """
    size = rewards.numel()
    shifted = rewards - rewards[0]
    numerator = size * shifted - shifted.sum()
    return Advantages(numerator, float(numerator.square().mean().sqrt()))


def kl_k3(policy: Tensor, reference: Tensor) -> Tensor:
    """Per-token k3 estimate of KL(policy || reference), nats, never negative; [N] log-probs of the sampled tokens, twice."""
    gap = reference - policy
    return gap.expm1() - gap  # exp(gap) - gap - 1 cancels to below zero while the policy is near the reference


def completion_means(values: Tensor, lengths: Tensor) -> Tensor:
    """Mean over each completion's own tokens, float64 [G]; values [N], lengths int64 [G], each at least 1, summing to N."""
    owner = torch.repeat_interleave(torch.arange(lengths.numel(), device=values.device), lengths)
    sums = torch.zeros(lengths.numel(), dtype=torch.float64, device=values.device).index_add(0, owner, values.double())
    return sums / lengths


def group_loss(policy: Tensor, reference: Tensor, lengths: Tensor, advantages: Advantages, beta: float) -> GroupLoss:
    """Mean over the group of mean over tokens of -(ratio * A - beta * kl); policy and reference log-probs float32 [N].

    The ratio's value is exactly 1. Advantages enter as numerators and are divided last, so that under whole rewards the
    value of the policy term is exactly zero, for every group size.
    """
    ratio = (policy - policy.detach()).exp()
    weight = torch.repeat_interleave(advantages.numerator.to(policy.device), lengths)
    gain = completion_means(ratio.double() * weight, lengths).mean()
    if advantages.denominator:
        gain = gain / advantages.denominator
    kl = completion_means(kl_k3(policy, reference), lengths).mean()
    return GroupLoss(beta * kl - gain, kl)

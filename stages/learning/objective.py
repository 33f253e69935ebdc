"""The two objectives, as pure functions of tensors: Bradley-Terry and the group-relative policy loss with its KL leash.

Where codebases differ, ours: the group's deviation is the population's (ddof 0) with no epsilon, as in GRPO-Zero (TRL
divides by the sample's, ddof 1, plus 1e-4); a completion's tokens are averaged first, then the group's completions
(DeepSeekMath, arXiv:2402.03300, eq. 3); the KL estimate is k3 (Schulman, http://joschu.net/blog/kl-approx.html),
not multiplied by the ratio (TRL's use_bias_correction_kl, on by default there, which changes its gradient and not its
value). With one update per batch of draws the ratio is exactly 1 and nothing is clipped; it stays in the loss for its
gradient.

What `Objective` may say otherwise is of later papers: DAPO (arXiv:2503.14476) averages over all tokens of a window, has an
upper clip of its own and leaves truncated completions out; Dr. GRPO (arXiv:2503.20783) divides by a fixed length and not by
the deviation; GSPO (arXiv:2507.18071) takes one ratio per completion; several updates with a clipped ratio are PPO's
(arXiv:1707.06347).

G completions of one prompt, N their tokens one after the other (no padding), B pairs.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

COMPLETION, TOKENS, FIXED = AGGREGATIONS = ("completion", "tokens", "fixed")
"""What a completion's sum over its tokens is divided by: its own tokens; the window's mean of those; the cap."""
TOKEN, SEQUENCE = LEVELS = ("token", "sequence")
"""What has a ratio of its own."""
GROUP, NONE = SCALES = ("group", "none")
"""What advantages are divided by: the group's deviation, or nothing."""


class Objective(Protocol):
    """What section `grpo` says of the loss."""

    @property
    def beta(self) -> float:
        """Weight of the KL leash."""

    @property
    def importance_sampling_level(self) -> str:
        """TOKEN or SEQUENCE."""

    @property
    def clip_low(self) -> float:
        """How far below 1 a ratio counts."""

    @property
    def clip_high(self) -> float:
        """How far above 1."""


class Advantages(NamedTuple):
    """A group's advantages as a fraction: numerator / denominator."""

    numerator: Tensor
    """G*r_i - sum(r), float64 [G]; whole where the rewards are, so that sums of it are exact."""
    denominator: float
    """G*std, or G where nothing is divided by the deviation, at least 0; where it is 0 every numerator is exactly 0."""

    def of(self, draws: slice) -> "Advantages":
        """Those of some draws of the group."""
        return Advantages(self.numerator[draws], self.denominator)

    def values(self) -> Tensor:
        """The advantages themselves, float64 [G]; exactly zero in a group of equal rewards."""
        return self.numerator / self.denominator if self.denominator else self.numerator


class GroupLoss(NamedTuple):
    """The loss of one group, float64 scalars."""

    loss: Tensor
    """Carries the gradient."""
    clipped: Tensor
    """Share of what has a ratio, tokens or completions, whose gradient the clip stops."""


class Counted(NamedTuple):
    """How a group's tokens count in the loss; C completions of N tokens."""

    lengths: Tensor
    """Tokens of each completion, int64 [C], each at least 1, summing to N."""
    divisors: Tensor
    """What each completion's sum is divided by, float64 [C]; infinite where the completion is left out."""


def bradley_terry(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(chosen - rejected) of each pair, nats; scores float32 [B], twice (Bradley and Terry, 1952)."""
    return -functional.logsigmoid(chosen - rejected)


def group_advantages(rewards: Tensor, scale: str = GROUP) -> Advantages:
    """(r - mean r) / std r of one group, as a fraction; rewards float64 [G], ddof 0, no epsilon. With NONE, r - mean r.

    The first reward is subtracted first: without it a group of equal rewards centres to rounding noise, which the
    division then blows up (sixteen rewards of 2.7 would get advantages of 1e-2).
    """
    size = rewards.numel()
    shifted = rewards - rewards[0]
    numerator = size * shifted - shifted.sum()
    return Advantages(numerator, float(numerator.square().mean().sqrt()) if scale == GROUP else float(size))


def spread(rewards: Tensor) -> float:
    """The population's standard deviation of one group's rewards, float64 [G]; exactly 0 where they are equal."""
    return group_advantages(rewards).denominator / rewards.numel()


def kl_k3(policy: Tensor, reference: Tensor) -> Tensor:
    """Per-token k3 estimate of KL(policy || reference), nats, never negative; [N] log-probs of the sampled tokens, twice."""
    gap = reference - policy
    return gap.expm1() - gap  # exp(gap) - gap - 1 cancels to below zero while the policy is near the reference


def counted(lengths: Tensor, kept: Tensor, aggregation: str, cap: int, tokens: float) -> Counted:
    """How completions count: lengths int64 [C]; kept bool [C], false for one that is left out of the sums, though not of the mean.

    `cap` is the tokens that a completion may have, `tokens` the window's mean of those that are kept, by completion of any kind.
    """
    own = lengths.double()
    divisors = {COMPLETION: own, TOKENS: torch.full_like(own, tokens), FIXED: torch.full_like(own, cap)}[aggregation]
    return Counted(lengths, divisors.where(kept, torch.inf))


def owners(lengths: Tensor) -> Tensor:
    """The completion of each token, int64 [N]; lengths int64 [C]."""
    return torch.repeat_interleave(torch.arange(lengths.numel(), device=lengths.device), lengths)


def completion_means(values: Tensor, lengths: Tensor, divisors: Tensor | None = None) -> Tensor:
    """Sum over each completion's own tokens by its divisor, float64 [C]: without divisors, the mean.

    values [N], lengths int64 [C], each at least 1, summing to N; divisors float64 [C].
    """
    sums = torch.zeros(lengths.numel(), dtype=torch.float64, device=values.device).index_add(0, owners(lengths), values.double())
    return sums / (lengths if divisors is None else divisors)


def ratios(policy: Tensor, sampler: Tensor, lengths: Tensor, level: str) -> Tensor:
    """Of each token, the policy's probability by that of the policy that sampled it [N]; log-probs [N] twice.

    With SEQUENCE every token has its completion's: the geometric mean of its tokens' ratios (GSPO, eq. 7).
    """
    gap = policy - sampler
    if level == SEQUENCE:
        gap = completion_means(gap, lengths).to(gap.dtype)[owners(lengths)]
    return gap.exp()


def group_loss(
    policy: Tensor, reference: Tensor, sampler: Tensor | None, count: Counted, advantages: Advantages, objective: Objective
) -> GroupLoss:
    """Mean over the group of the completions' shares of -(ratio * A - beta * kl); log-probs float32 [N], each.

    `sampler` holds those of the policy that sampled, which is the policy as it stands where it is None: the ratio's value is
    then exactly 1 and nothing can be clipped. Else ratio * A is the smaller one of itself and with the ratio held between
    1 - clip_low and 1 + clip_high. Advantages enter as numerators and are divided last, so that under whole rewards the
    value of the policy term is exactly zero, for every group size, where completions are averaged on their own.
    """
    lengths, divisors = count
    ratio = ratios(policy, policy.detach() if sampler is None else sampler, lengths, objective.importance_sampling_level).double()
    weight = advantages.numerator.to(policy.device)[owners(lengths)]
    gained = ratio * weight
    clipped = torch.zeros((), dtype=torch.float64, device=policy.device)
    if sampler is not None:
        held = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high) * weight
        stopped = held < gained
        gained = torch.where(stopped, held, gained)
        by_completion = objective.importance_sampling_level == SEQUENCE
        clipped = completion_means(stopped, lengths).mean() if by_completion else stopped.double().mean()
    gain = completion_means(gained, lengths, divisors).mean()
    if advantages.denominator:
        gain = gain / advantages.denominator
    kl = completion_means(kl_k3(policy, reference), lengths, divisors).mean()
    return GroupLoss(objective.beta * kl - gain, clipped)

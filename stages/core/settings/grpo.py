"""Section `grpo`: the policy adapter, the group, the leash and the optimizer."""

from dataclasses import dataclass

from stages.core.settings import adapter, schema
from stages.core.settings.reward_parts import RewardPart, told_apart
from stages.core.settings.schema import above, at_least, finite_above_zero, finite_from_zero, not_empty, one_of, setting, temperature

GRPO = "group-relative policy optimization requires "


@dataclass(frozen=True)
class Grpo:
    """What the grpo stage trains with; every number is the caller's."""

    reward: str | list[RewardPart] = setting(
        not_empty("length, the path of a reward artifact, the name of a function in stages/rewards/, or a list of these is expected"),
        told_apart(),
    )
    """`length`, the pipeline's own artifacts/reward/reward.safetensors, a reward artifact under data/rewards/, the name of a function
    in stages/rewards/, or a list of these with their weights."""
    init_adapter: str | None = setting(not_empty("the path of a policy's artifact under data/adapters/, or null, is expected"))
    """A policy's artifact under data/adapters/ that training starts from, and that loss and leash are held against; null: the base."""
    group: int = setting(
        at_least(2, GRPO + "a group of at least two completions, because the group is the baseline"),
    )
    """Completions per prompt."""
    iterations: int = setting(at_least(1, GRPO + "at least one iteration"))
    """Passes over the training prompts."""
    beta: float = setting(finite_from_zero(GRPO + "a finite beta of zero or more"))
    """Weight of the KL leash to the frozen base."""
    rank: int = setting(adapter.rank)
    """LoRA rank."""
    alpha: float = setting(adapter.alpha)
    """LoRA alpha; the update is scaled by alpha/rank."""
    targets: str | list[str] = setting(adapter.targets)
    """Linear modules of the decoder layers that get an adapter: short names (query, value), the checkpoint's own, or all-linear."""
    layers: str | list[int] = setting(adapter.layers)
    """Decoder layers that get one: all, a list, or a half-open range 8..16."""
    learning_rate: float = setting(finite_above_zero(GRPO + "a finite learning rate above zero"))
    """Peak learning rate of AdamW."""
    warmup_steps: int = setting(adapter.warmup_steps)
    """Optimizer steps of linear warm-up, below the planned steps; a cosine to zero follows."""
    weight_decay: float = setting(adapter.weight_decay)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = setting(adapter.max_grad_norm)
    """The gradient's norm is clipped to this."""
    accumulation: int = setting(at_least(1, GRPO + "an accumulation of at least one prompt"))
    """Prompts per optimizer step."""
    max_new_tokens: int = setting(at_least(1, "max_new_tokens must be greater than zero"))
    """Tokens that a completion may have, its end token included."""
    temperature: float = setting(temperature(GRPO + "a temperature above zero", greedy=False))
    """Sampling temperature; log-probabilities in the loss are of the tempered distribution."""
    top_p: float = setting(above(0, 1, "top_p must be above zero and at most one"))
    """Nucleus sampled from; log-probabilities are taken before it."""
    max_sequence: int = setting(at_least(1, "max_sequence must be at least one token"))
    """Tokens of a rendered prompt; a longer one is skipped whole and counted."""
    updates: int = setting(at_least(1, GRPO + "at least one update per round of sampling"))
    """Optimizer steps on each window's completions; from the second on the ratio is no longer 1, and is clipped."""
    clip_low: float = setting(above(0, 1, "clip_low must be above zero and at most one"))
    """How far below 1 a ratio counts."""
    clip_high: float = setting(finite_above_zero("clip_high must be a finite number above zero"))
    """How far above 1 a ratio counts."""
    importance_sampling_level: str = setting(one_of("token", "sequence"))
    """What has a ratio of its own: each token, or each completion."""
    aggregation: str = setting(one_of("completion", "tokens", "fixed"))
    """What a completion's sum over its tokens is divided by: its own tokens, the window's mean of those, or max_new_tokens."""
    scale_rewards: str = setting(one_of("group", "none"))
    """What advantages are divided by: the deviation of the group's rewards, or nothing."""
    mask_truncated: bool = setting()
    """Whether a truncated completion is left out of the loss; it stays in its group's baseline."""
    empty_completions: str = setting(one_of("refuse", "score"))
    """What becomes of a group in which a completion is a lone end token: refused and counted, or scored with length 0."""
    seed: int = setting(schema.seed)
    """Seed of the adapter's start and of every draw."""

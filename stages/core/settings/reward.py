"""Section `reward`: the Bradley-Terry reward model's adapter, optimizer and batches."""

from dataclasses import dataclass

from stages.core.settings import adapter, schema
from stages.core.settings.schema import at_least, finite_above_zero, setting

RM = "reward modeling requires "


@dataclass(frozen=True)
class Reward:
    """What the reward stage trains with; every number is the caller's."""

    rank: int = setting(adapter.rank)
    """LoRA rank."""
    alpha: float = setting(adapter.alpha)
    """LoRA alpha; the update is scaled by alpha/rank."""
    targets: str | list[str] = setting(adapter.targets)
    """Linear modules of the decoder layers that get an adapter: short names (query, value), the checkpoint's own, or all-linear."""
    layers: str | list[int] = setting(adapter.layers)
    """Decoder layers that get one: all, a list, or a half-open range 8..16."""
    epochs: int = setting(at_least(1, RM + "at least one epoch"))
    """Passes over the training pairs."""
    learning_rate: float = setting(finite_above_zero(RM + "a finite learning rate above zero"))
    """Peak learning rate of AdamW."""
    warmup_steps: int = setting(adapter.warmup_steps)
    """Optimizer steps of linear warm-up, below the number of steps; a cosine to zero follows."""
    weight_decay: float = setting(adapter.weight_decay)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = setting(adapter.max_grad_norm)
    """The gradient's norm is clipped to this."""
    accumulation: int = setting(at_least(1, RM + "an accumulation of at least one pair"))
    """Pairs per optimizer step."""
    batch_size: int = setting(at_least(1, RM + "a batch of at least one pair"))
    """Pairs per forward pass; changes no number beyond rounding."""
    max_sequence: int = setting(at_least(2, "max_sequence must be at least two tokens"))
    """Tokens of a whole side; a pair with a longer side is skipped whole and counted."""
    seed: int = setting(schema.seed)
    """Seed of the adapter's start and of the order of the pairs."""

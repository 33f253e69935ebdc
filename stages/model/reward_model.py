"""The reward model: LoRA adapters in the shared base, and a head that reads one number off the last token's hidden state."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.files.artifacts import HEAD, Artifact
from stages.model.adapters import Adapters, Plan
from stages.model.checkpoint import hidden_width
from stages.model.groups import Completed

ADAPTER_NAME = "reward"


class RewardModel:
    """A score per sequence: head [1, H] (bias-free, float32) on the hidden state of its last token after the final norm."""

    def __init__(self, adapters: Adapters, head: nn.Parameter, name: str) -> None:
        self.adapters = adapters
        self.head = head
        self.name = name

    @classmethod
    def fresh(cls, adapters: Adapters, plan: Plan, seed: int) -> "RewardModel":
        """A reward model at its start: it scores everything exactly 0."""
        adapters.add_fresh(ADAPTER_NAME, plan, seed)
        model = adapters.model
        zeros = torch.zeros(1, hidden_width(model.config), dtype=torch.float32, device=model.device)
        return cls(adapters, nn.Parameter(zeros), ADAPTER_NAME)

    @classmethod
    def trained(cls, adapters: Adapters, artifact: Artifact, name: str = ADAPTER_NAME) -> "RewardModel":
        """The reward model of an artifact, frozen, its adapter added as `name`; the artifact was read and checked before."""
        adapters.add_trained(name, artifact.rank, artifact.alpha, artifact.tensors)
        head = torch.from_numpy(artifact.tensors[HEAD].copy()).to(adapters.model.device)
        return cls(adapters, nn.Parameter(head, requires_grad=False), name)

    @property
    def model(self) -> PreTrainedModel:
        """The base that it shares."""
        return self.adapters.model

    def trainable(self) -> dict[str, nn.Parameter]:
        """What an optimizer trains, by file name: the factors, then the head."""
        return {**self.adapters.factors(self.name), HEAD: self.head}

    def scores(self, groups: Sequence[Completed]) -> Tensor:
        """Scores of every prompt with each of its completions, float32 [sum of G]; carries the gradient.

        The caller turns the reward adapter on.
        """
        return (self.adapters.passes.last_hidden(groups) @ self.head.T)[:, 0]

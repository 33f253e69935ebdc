"""What scores completions: the function `length`, or a reward model's artifact. Opened, and refused, before weights are loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from stages.core import layout
from stages.core.errors import SettingsError
from stages.files import artifacts
from stages.files.artifacts import Artifact
from stages.files.base_record import BaseRecord
from stages.model.adapters import Adapters
from stages.model.reward_model import ADAPTER_NAME, RewardModel
from stages.model.sampling import Completion

LENGTH = "length"
MODEL = "reward:"
"""What a report puts before the path of a reward artifact."""


@dataclass(frozen=True)
class RewardSource:
    """A reward that was opened: its name in reports, and its artifact where it is a model."""

    name: str
    artifact: Artifact | None

    def attach(self, adapters: Adapters, adapter_name: str = ADAPTER_NAME) -> "Scorer":
        """Puts the reward's adapters, if it has any, beside the others in the one copy of the base, under a name of their own."""
        return Scorer(adapters, None if self.artifact is None else RewardModel.trained(adapters, self.artifact, adapter_name))


@dataclass(frozen=True)
class Scorer:
    """Scores the completions of a prompt."""

    adapters: Adapters
    reward_model: RewardModel | None

    @torch.no_grad()
    def rewards(self, prompt: Sequence[int], completions: Sequence[Completion]) -> Tensor:
        """Rewards of one prompt's completions, float64 [G], on the very tokens that were sampled; leaves every adapter off.

        A reward model reads the end token where one was sampled, and the last token where the completion was truncated.
        """
        if self.reward_model is None:
            length = import_module("stages.rewards.length").length
            return torch.tensor(length([completion.content for completion in completions]), dtype=torch.float64)
        with self.adapters.using(self.reward_model.name, then=None):
            return self.reward_model.scores([[*prompt, *completion.ids] for completion in completions]).double().cpu()


def open_source(setting: str, base: BaseRecord) -> RewardSource:
    """Opens `length` or the path of a reward artifact; raises SettingsError or ArtifactError."""
    if setting == LENGTH:
        return RewardSource(LENGTH, None)
    path = Path(setting)
    if path != layout.REWARD and not path.is_file():
        raise SettingsError(
            f'grpo.reward: reward source "{setting}" is neither the keyword length nor a file that exists; '
            f"name length, {layout.REWARD}, or an artifact under {layout.REWARD_ARTIFACTS}/"
        )
    artifact = artifacts.read(path, artifacts.REWARD)
    artifacts.require_base(path, artifact, base)
    return RewardSource(MODEL + path.as_posix(), artifact)


def reopen(name: str, base: BaseRecord) -> RewardSource:
    """Opens a reward by its name in a report; raises as `open_source`."""
    return open_source(name.removeprefix(MODEL), base)

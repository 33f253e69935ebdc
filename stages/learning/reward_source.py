"""What scores completions: the function `length`, or a reward model's artifact. Opened, and refused, before weights are loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from stages.core import layout
from stages.core.errors import ArtifactError, SettingsError
from stages.core.progress import say
from stages.files import artifacts
from stages.files.artifacts import Artifact
from stages.files.base_record import BaseRecord
from stages.model.adapters import Adapters
from stages.model.groups import Completed, runs
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
    files: tuple[Path, ...] = ()
    """Those of the artifact."""

    def attach(self, adapters: Adapters, adapter_name: str = ADAPTER_NAME) -> "Scorer":
        """Puts the reward's adapters, if it has any, beside the others in the one copy of the base, under a name of their own."""
        return Scorer(adapters, None if self.artifact is None else RewardModel.trained(adapters, self.artifact, adapter_name))


@dataclass(frozen=True)
class Scorer:
    """Scores the completions of a prompt."""

    adapters: Adapters
    reward_model: RewardModel | None

    @torch.no_grad()
    def rewards(self, groups: Sequence[tuple[Sequence[int], Sequence[Completion]]]) -> list[Tensor]:
        """Rewards of several prompts' completions, float64 [G] each, on the very tokens that were sampled; leaves every adapter off.

        A reward model reads the end token where one was sampled, and the last token where the completion was truncated. It reads
        equal completions of a prompt once, so that their rewards are equal to the last bit.
        """
        if self.reward_model is None:
            length = import_module("stages.rewards.length").length
            return [torch.tensor(length([one.content for one in completions]), dtype=torch.float64) for _, completions in groups]
        unlike = [list(dict.fromkeys(tuple(completion.ids) for completion in completions)) for _, completions in groups]
        whole = [Completed(prompt, ids) for (prompt, _), ids in zip(groups, unlike, strict=True)]
        scores: list[Tensor] = []
        with self.adapters.using(self.reward_model.name, then=None):
            for together in runs(whole, self.adapters.passes.fits):
                found = self.reward_model.scores([whole[number] for number in together])
                scores += found.double().cpu().split([len(whole[number].completions) for number in together])
        rewards: list[Tensor] = []
        for (_, completions), ids, unlike_scores in zip(groups, unlike, scores, strict=True):
            place = {one: number for number, one in enumerate(ids)}
            rewards.append(unlike_scores[[place[tuple(completion.ids)] for completion in completions]])
        return rewards


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
    for key, now in (("chat_template", base.chat_template), ("precision", base.precision)):
        if artifact.report.get(key) != now:
            say(f"{path}: trained with base.{key} {artifact.report.get(key)}, and scores here with {now}")
    return RewardSource(MODEL + path.as_posix(), artifact, (path, artifacts.sidecar_path(path)))


def reopen(name: str, base: BaseRecord) -> RewardSource:
    """Opens the reward that a policy was trained on, by its name in the report; raises ArtifactError."""
    setting = name.removeprefix(MODEL)
    path = Path(setting)
    own = path == layout.REWARD or (layout.REWARD_ARTIFACTS in path.parents and ".." not in path.parts)
    if name != LENGTH and not (name.startswith(MODEL) and own):
        raise ArtifactError(
            f"{layout.POLICY}: its report names the reward {name[:80]!r}, which grpo never trains on; run `dvc repro -f grpo`"
        )
    if setting != LENGTH and not path.is_file():
        raise ArtifactError(f"{layout.POLICY}: it was trained on {name}, which is not there; bring it back, or run `dvc repro -f grpo`")
    return open_source(setting, base)

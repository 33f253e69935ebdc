"""What scores completions: `length`, a reward model's artifact, a function of stages/rewards/, or several of these with their weights.

Opened, and refused, before weights are loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.core import layout, reward_functions
from stages.core.errors import ArtifactError, SettingsError
from stages.core.progress import say
from stages.core.reward_functions import LENGTH
from stages.core.settings.reward_parts import RewardPart, parts_of
from stages.core.settings.schema import build_one_of
from stages.files import artifacts
from stages.files.artifacts import Artifact
from stages.files.base_record import BaseRecord
from stages.files.records import Prompt
from stages.learning import function_reward
from stages.learning.function_reward import Function, FunctionPart
from stages.learning.scores import Drawn, Part, Rewards, Scores, all_rated, weighted
from stages.model.adapters import Adapters
from stages.model.groups import Completed, runs
from stages.model.rendering import Renderer
from stages.model.reward_model import ADAPTER_NAME, RewardModel

MODEL = "reward:"
"""What a report puts before the path of a reward artifact."""
FUNCTION = "function:"
"""What a report puts before the name of a function."""


class LengthPart:
    """The number of tokens, of stages/rewards/length.py."""

    def rewards(self, groups: Sequence[Drawn]) -> list[Rewards]:
        """Of several prompts' completions."""
        length = import_module("stages.rewards.length").length
        return [all_rated(torch.tensor(length([one.content for one in group.completions]), dtype=torch.float64)) for group in groups]


@dataclass(frozen=True)
class ModelPart:
    """A reward model among the adapters of the one base."""

    adapters: Adapters
    reward_model: RewardModel

    @torch.no_grad()
    def rewards(self, groups: Sequence[Drawn]) -> list[Rewards]:
        """Of several prompts' completions; leaves every adapter off.

        It reads the end token where one was sampled, and the last token where the completion was truncated. It reads equal
        completions of a prompt once, so that their rewards are equal to the last bit.
        """
        unlike = [list(dict.fromkeys(tuple(completion.ids) for completion in group.completions)) for group in groups]
        whole = [Completed(group.prompt, ids) for group, ids in zip(groups, unlike, strict=True)]
        scores: list[Tensor] = []
        with self.adapters.using(self.reward_model.name, then=None):
            for together in runs(whole, self.adapters.passes.fits):
                found = self.reward_model.scores([whole[number] for number in together])
                scores += found.double().cpu().split([len(whole[number].completions) for number in together])
        rewards: list[Rewards] = []
        for group, ids, unlike_scores in zip(groups, unlike, scores, strict=True):
            place = {one: number for number, one in enumerate(ids)}
            rewards.append(all_rated(unlike_scores[[place[tuple(completion.ids)] for completion in group.completions]]))
        return rewards


@dataclass(frozen=True)
class OpenedPart:
    """A part of a reward that was opened: its artifact where it is a model, its function where it is that."""

    part: RewardPart
    artifact: Artifact | None = None
    function: Function | None = None

    @property
    def name(self) -> str:
        """Its source as reports name it."""
        return (MODEL if self.artifact else FUNCTION if self.function else "") + self.part.source


@dataclass(frozen=True)
class RewardSource:
    """A reward that was opened."""

    parts: tuple[OpenedPart, ...]

    @property
    def name(self) -> str:
        """What reports call it: a source alone, or the parts with their weights."""
        first = self.parts[0]
        if len(self.parts) == 1 and first.part.weight == 1 and not first.part.arguments:
            return first.name
        return " + ".join(f"{one.part.weight:g} * {one.name}{_shown(one.part.arguments)}" for one in self.parts)

    @property
    def files(self) -> list[Path]:
        """Those of the artifacts."""
        paths = [Path(one.part.source) for one in self.parts if one.artifact]
        return [file for path in paths for file in (path, artifacts.sidecar_path(path))]

    def record(self) -> list[dict[str, Any]]:
        """The parts as an artifact's report has them, for `reopen`."""
        return [asdict(one.part) for one in self.parts]

    def attach(
        self,
        adapters: Adapters,
        rows: Sequence[Prompt],
        renderer: Renderer,
        adapter_name: str = ADAPTER_NAME,
        there: Mapping[str, RewardModel] | None = None,
    ) -> "Scorer":
        """Puts the reward models, if there are any, beside the other adapters in the one copy of the base, under names of their own.

        `rows` are those of the file that places of prompts count in. A model that is `there` already, by its path, is not put in again.
        """
        models = dict(there or {})
        parts: dict[str, tuple[float, Part]] = {}
        for number, one in enumerate(self.parts):
            part: Part = LengthPart()
            if one.function:
                part = FunctionPart(one.function, rows, renderer)
            elif one.artifact:
                if one.part.source not in models:
                    name = adapter_name if number == 0 else f"{adapter_name}_{number}"
                    models[one.part.source] = RewardModel.trained(adapters, one.artifact, name)
                part = ModelPart(adapters, models[one.part.source])
            parts[one.part.called] = one.part.weight, part
        return Scorer(parts)


@dataclass(frozen=True)
class Scorer:
    """Scores the completions of prompts."""

    parts: Mapping[str, tuple[float, Part]]
    """Weight and part by name."""

    def scores(self, groups: Sequence[Drawn]) -> list[Scores]:
        """Of several prompts' completions, on the very tokens that were sampled; leaves every adapter off."""
        found = {name: part.rewards(groups) for name, (_, part) in self.parts.items()}
        weights = [weight for weight, _ in self.parts.values()]
        every: list[Scores] = []
        for number in range(len(groups)):
            parts = {name: rewards[number] for name, rewards in found.items()}
            every.append(Scores(weighted(list(zip(weights, parts.values(), strict=True))), parts))
        return every


def model_scorer(adapters: Adapters, reward_model: RewardModel) -> Scorer:
    """Scores by this reward model alone."""
    return Scorer({"reward": (1.0, ModelPart(adapters, reward_model))})


def open_source(setting: str | Sequence[RewardPart], base: BaseRecord) -> RewardSource:
    """Opens what `grpo.reward` names; raises SettingsError, RewardFunctionError or ArtifactError."""
    parts = parts_of(setting)
    keys = ["grpo.reward"] if isinstance(setting, str) else [f"grpo.reward[{place}].source" for place in range(len(parts))]
    return RewardSource(tuple(_opened(key, part, base) for key, part in zip(keys, parts, strict=True)))


def open_model(path: Path, base: BaseRecord) -> Artifact:
    """Reads a reward model of this base; raises ArtifactError."""
    artifact = artifacts.read(path, artifacts.REWARD)
    artifacts.require_base(path, artifact, base)
    for key, now in (("chat_template", base.chat_template), ("precision", base.precision)):
        if artifact.report.get(key) != now:
            say(f"{path}: trained with base.{key} {artifact.report.get(key)}, and scores here with {now}")
    return artifact


def reopen(record: object, base: BaseRecord) -> RewardSource:
    """Opens the reward that a policy was trained on, by the parts that its report names; raises ArtifactError or RewardFunctionError."""
    again = "run `dvc repro -f grpo`"
    entries = record if isinstance(record, list) and record else [None]
    built = [build_one_of((RewardPart,), "reward_parts", entry) for entry in entries]
    if any(one.problems for one in built):
        raise ArtifactError(f"{layout.POLICY}: its report does not say what reward it was trained on; {again}")
    parts: list[RewardPart] = [one.value for one in built]
    for part in parts:
        path = Path(part.source)
        own = path == layout.REWARD or (layout.REWARD_ARTIFACTS in path.parents and ".." not in path.parts)
        if own and not path.is_file():
            raise ArtifactError(f"{layout.POLICY}: it was trained on {MODEL}{path}, which is not there; bring it back, or {again}")
        if own or part.source == LENGTH or part.source in reward_functions.names():
            continue
        if reward_functions.NAME.fullmatch(part.source):
            gone = f"{FUNCTION}{part.source}, which is not in {layout.REWARDS}/ any more"
            raise ArtifactError(f"{layout.POLICY}: it was trained on {gone}; bring it back, or {again}")
        raise ArtifactError(f"{layout.POLICY}: its report names the reward {part.source[:80]!r}, which grpo never trains on; {again}")
    return open_source(parts, base)


def _opened(key: str, part: RewardPart, base: BaseRecord) -> OpenedPart:
    arguments = part.arguments or {}
    if part.source != LENGTH and part.source in reward_functions.names():
        return OpenedPart(part, function=function_reward.load(part.source, arguments))
    if part.source != LENGTH and Path(part.source) != layout.REWARD and not Path(part.source).is_file():
        raise SettingsError(f"{key}: {reward_functions.not_there(part.source)}")
    if problems := reward_functions.none_taken(part.source, arguments):
        raise SettingsError([f"{key}: {problem}" for problem in problems])
    return OpenedPart(part, artifact=None if part.source == LENGTH else open_model(Path(part.source), base))


def _shown(arguments: Mapping[str, Any] | None) -> str:
    return f"({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else ""

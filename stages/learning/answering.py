"""One prompt answered by base and policy on the same draws, and what both answers are worth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from stages.core import layout
from stages.core.errors import TrainingError
from stages.core.settings.evaluate import Evaluate
from stages.core.settings.runtime import Runtime
from stages.files import artifacts, base_record
from stages.files.base_record import BaseRecord
from stages.files.records import Text
from stages.learning import fitting, reward_source
from stages.learning.reward_source import Scorer
from stages.learning.scores import Drawn
from stages.model import checkpoint, device, passes
from stages.model.adapters import Adapters
from stages.model.draws import group_uniforms
from stages.model.rendering import Renderer
from stages.model.reward_model import RewardModel
from stages.model.sampling import Completion, NotFiniteError, sample

SIDES = {"base": None, "policy": "policy"}
"""The adapter of each side; None is the base."""
ITERATION = 2
"""In draws' sense: none that evaluate or a comparison draws of."""


class Answer(NamedTuple):
    """What one side says."""

    text: str
    tokens: int
    truncated: bool
    reward: float
    """By the pipeline's own reward model."""


@dataclass(frozen=True)
class Answering:
    """Base and policy in one copy of the base's weights, ready to answer."""

    base: BaseRecord
    adapters: Adapters
    scorer: Scorer
    renderer: Renderer
    settings: Evaluate

    @torch.no_grad()
    def answers(self, prompts: Mapping[str, Text], turn: int, samples: int = 1) -> dict[str, list[Answer]]:
        """By side, the answers to that side's prompt; the same uniform number chooses both sides' token.

        Raises TrainingError where a prompt runs beyond the model's positions, or a distribution is not finite.
        """
        settings = self.settings
        chooser = group_uniforms(settings.seed, ITERATION, [turn], samples, settings.max_new_tokens)
        found = {}
        for side, prompt in prompts.items():
            ids = self.renderer.prompt(prompt)
            fitting.require_positions("evaluate.max_new_tokens", "the prompt", len(ids), settings.max_new_tokens, self.base)
            self.adapters.use(SIDES[side])
            try:
                (completions,) = sample(self.adapters.passes, [ids], chooser, settings.temperature, settings.top_p, self.base.end_tokens)
            except NotFiniteError as error:
                raise TrainingError(f"the {side}'s distribution is not finite at position {error.position}") from error
            rewards = self.scorer.scores([Drawn(0, ids, completions)])[0].total.values
            found[side] = [self._answer(*pair) for pair in zip(completions, rewards.tolist(), strict=True)]
        return found

    def _answer(self, completion: Completion, reward: float) -> Answer:
        return Answer(self.renderer.text(completion.content), completion.length, not completion.ended, reward)


def opened(settings: Evaluate, runtime: Runtime) -> Answering:
    """What the pipeline has trained; raises ArtifactError or BaseError where it is not there, or does not fit."""
    base = base_record.read_base()
    policy = artifacts.read(layout.POLICY, artifacts.ADAPTER)
    artifacts.require_base(layout.POLICY, policy, base)
    reward = reward_source.open_model(layout.REWARD, base)
    found = checkpoint.find(base)
    adapted = Adapters(passes.choose(checkpoint.load_weights(found, device.prepare(runtime)), runtime))
    adapted.add_trained("policy", policy.rank, policy.alpha, policy.tensors)
    scorer = reward_source.model_scorer(adapted, RewardModel.trained(adapted, reward))
    return Answering(base, adapted, scorer, Renderer(found.tokenizer, base), settings)

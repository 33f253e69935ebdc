"""A round of the grpo stage: a window's completions are drawn, scored, and stepped on, once or several times.

All completions of a window are drawn in one batch from the policy as it stands; the groups are then scored, compared with
the frozen reference and back-propagated, a few in one pass, each divided by the groups that the window scored. Several
processes share a window's prompts when sampling, and its passes after that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stages.core.errors import TrainingError
from stages.core.progress import say
from stages.core.settings.grpo import Grpo
from stages.learning.fitting import FittingPrompts
from stages.learning.metrics import first_not_finite
from stages.learning.objective import (
    Advantages,
    Counted,
    GroupLoss,
    completion_means,
    counted,
    group_advantages,
    group_loss,
    kl_k3,
    spread,
)
from stages.learning.optimizer import NotFiniteGradientError, remedy
from stages.learning.ranks import GradientSum, Ranks
from stages.learning.reward_source import Scorer
from stages.learning.scores import Drawn, Rewards
from stages.model.adapters import Adapters
from stages.model.draws import group_uniforms
from stages.model.groups import TokenScores, runs
from stages.model.sampling import Completion, NotFiniteError, sample

ADAPTER_NAME = "policy"
START_NAME = "start"
"""The adapter that the policy started from, where there is one."""


class Remembered(NamedTuple):
    """Log-probabilities of a group's tokens that do not change between the updates of a round, float32 [N] each."""

    reference: Tensor
    sampler: Tensor
    """Those of the policy that sampled them."""


class Group(NamedTuple):
    """A prompt's completions with their rewards and advantages."""

    drawn: Drawn
    rewards: Tensor
    """float64 [G]."""
    advantages: Advantages
    parts: Mapping[str, Rewards] = MappingProxyType({})
    """Of several rewards each one's own, by name."""
    remembered: Remembered | None = None
    """None in the first update, which finds them."""

    @property
    def completions(self) -> Sequence[Completion]:
        """The completions themselves."""
        return self.drawn.completions

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion [G]."""
        return [len(completion.ids) for completion in self.completions]

    def of(self, draws: slice) -> "Group":
        """Some draws of the group, with the rewards and advantages that they have in it."""
        remembered = self.remembered and Remembered(*(torch.cat(one.split(self.lengths)[draws]) for one in self.remembered))
        drawn = self.drawn._replace(completions=self.completions[draws])
        parts = {name: rewards.of(draws) for name, rewards in self.parts.items()}
        return Group(drawn, self.rewards[draws], self.advantages.of(draws), parts, remembered)


class GroupFigures(NamedTuple):
    """What one group contributed; means over the group of the completions' own means, whatever the loss makes of them."""

    loss: float
    reward: float
    spread: float
    """Population standard deviation of the group's rewards; exactly 0 where they are equal."""
    kl: float
    tokens: float
    truncated: float
    entropy: float
    clipped: float
    """Share of its ratios that the clip holds."""
    completions: int
    parts: dict[str, list[float | None]]
    """Of several rewards each one's mean and deviation, null where it abstained throughout, and the share in which it abstained."""


@dataclass
class Window:
    """A window's groups as they are scored, cut into passes; of several processes each has its own share of these."""

    passes: list[list[Group]]
    groups: int
    """Of all processes."""
    refused: int
    """Groups left out because a completion has no reward, of all processes."""
    mean_tokens: float
    """Tokens that are in the loss by completions of any kind, of all processes."""


@dataclass(frozen=True)
class Rounds:
    """What every window is computed with."""

    adapters: Adapters
    scorer: Scorer
    prompts: FittingPrompts
    end_tokens: Sequence[int]
    settings: Grpo
    ranks: Ranks
    reference: str | None = None
    """The adapter that the policy is held against; None is the base."""

    def sampled(self, window: range, iteration: int, name: str, step: int) -> tuple[list[Drawn], int]:
        """What was drawn for the window's prompts, each process sampling its share, and how many groups were refused."""
        for number in window:
            say(f"{name} prompt {self.prompts.indexes[number]} sampling {self.settings.group} completions")
        own = self.ranks.share(len(window))
        parts = self.ranks.gather(lambda: self.sample(window[own.start : own.stop], iteration, name, step) if own else [])
        every = [drawn for part in parts for drawn in part]
        kept = [drawn for drawn in every if self.settings.empty_completions == "score" or not any(one.empty for one in drawn.completions)]
        for place in sorted({drawn.place for drawn in every} - {drawn.place for drawn in kept}):
            say(f"{name} prompt {place}: a sampled completion was empty, so this group has nothing to score; the group is refused")
        return kept, len(every) - len(kept)

    def sample(self, window: range, iteration: int, name: str, step: int) -> list[Drawn]:
        """Completions of these prompts; raises TrainingError where the policy's distribution is not finite."""
        indexes = [self.prompts.indexes[number] for number in window]
        settings = self.settings
        chooser = group_uniforms(settings.seed, iteration, indexes, settings.group, settings.max_new_tokens)
        self.adapters.use(ADAPTER_NAME)
        ids = [self.prompts.ids[number] for number in window]
        try:
            sampled = sample(self.adapters.passes, ids, chooser, settings.temperature, settings.top_p, self.end_tokens)
        except NotFiniteError as error:
            raise TrainingError(
                f"{name} prompt {indexes[error.prompt]} draw {error.draw}: the policy's distribution is not finite at "
                f"position {error.position}; {remedy('grpo', step)}"
            ) from error
        return [Drawn(*one) for one in zip(indexes, ids, sampled, strict=True)]

    def passes(self, drawn: Sequence[Drawn]) -> list[Sequence[Drawn]]:
        """The groups of each pass that a window is cut into."""
        return [drawn[one.start : one.stop] for one in runs([group.whole() for group in drawn], self.adapters.passes.fits)]

    def scored(self, drawn: Sequence[Drawn], name: str) -> Window:
        """The window with its rewards, each process scoring its share; raises TrainingError where one is not finite."""
        passes = self.passes(drawn)
        own = self.ranks.share(len(passes))
        mine: list[list[Group]] = []

        def work() -> dict[int, int]:
            unrated: dict[int, int] = {}
            mine.extend(self._scored(one, name, unrated) for one in passes[own.start : own.stop])
            return unrated

        unrated = {place: draw for part in self.ranks.gather(work) for place, draw in part.items()}
        for place, draw in unrated.items():
            say(f"{name} prompt {place}: draw {draw} has no reward, since none rates it, so the group is refused")
        scored = [one.place for one in drawn if one.place not in unrated]
        completions = [completion for one in drawn if one.place in scored for completion in one.completions]
        tokens = sum(len(completion.ids) for completion in completions if self._counts(completion))
        kept = [together for together in mine if together]
        return Window(kept, len(scored), len(drawn) - len(scored), tokens / max(1, len(completions)))

    def back_propagated(self, window: Window, gradients: GradientSum, name: str, step: int) -> list[GroupFigures]:
        """Adds up the gradient of the groups' mean loss, each process by its share of the passes; gives the figures of all."""

        def work() -> list[GroupFigures]:
            found: list[GroupFigures] = []
            for number, together in enumerate(window.passes):
                loss, figures, remembered = self.loss(together, window.mean_tokens, name, step)
                (loss / window.groups).backward()
                gradients.add()
                found += figures
                if self.settings.updates > 1:
                    window.passes[number] = [group._replace(remembered=one) for group, one in zip(together, remembered, strict=True)]
            return found

        return [figures for part in self.ranks.gather(work) for figures in part]

    def blame(self, window: Window, trainable: Iterable[nn.Parameter], name: str, step: int, error: NotFiniteGradientError) -> None:
        """Raises TrainingError with the prompt and the draw whose gradient is not finite, where one alone is that."""
        parameters = list(trainable)

        def broken(group: Group) -> bool:
            gradients = torch.autograd.grad(self.loss([group], window.mean_tokens, name, step)[0], parameters, allow_unused=True)
            return not all(torch.isfinite(one).all() for one in gradients if one is not None)

        def work() -> str | None:
            for group in (group for together in window.passes for group in together):
                if broken(group):
                    draws = range(len(group.completions))
                    draw = next((draw for draw in draws if broken(group.of(slice(draw, draw + 1)))), None)
                    return f"prompt {group.drawn.place}" + ("" if draw is None else f" draw {draw}")
            return None

        for culprit in self.ranks.gather(work):
            if culprit:
                raise TrainingError(f"{name} {culprit}: {error.what}") from error

    def loss(
        self, groups: Sequence[Group], mean_tokens: float, name: str, step: int
    ) -> tuple[Tensor, list[GroupFigures], list[Remembered]]:
        """The sum of these groups' losses by one pass of the policy, and in a round's first update one of the reference.

        Gives also what each group contributed, and the log-probabilities that the next updates are held against.
        """
        policy, remembered = self._token_scores(groups)
        losses, figures = [], []
        for group, ours, held in zip(groups, policy, remembered, strict=True):
            count = self._counted(group, mean_tokens, ours.log_probs.device)
            sampler = None if group.remembered is None else held.sampler
            parts = group_loss(ours.log_probs, held.reference, sampler, count, group.advantages, self.settings)
            kls = completion_means(kl_k3(ours.log_probs.detach(), held.reference), count.lengths)
            if not torch.isfinite(parts.loss):
                draw = first_not_finite(kls.cpu().numpy())
                raise TrainingError(
                    f"{name} prompt {group.drawn.place}{'' if draw is None else f' draw {draw}'}: the loss is not finite "
                    f"(kl {float(kls.mean())}); no weight was moved; {remedy('grpo', step)}"
                )
            losses.append(parts.loss)
            figures.append(_figures(group, parts, float(kls.mean()), float(completion_means(ours.entropy, count.lengths).mean())))
        return torch.stack(losses).sum(), figures, remembered

    def _scored(self, drawn: Sequence[Drawn], name: str, unrated: dict[int, int]) -> list[Group]:
        """The groups of one pass that have all their rewards; the first draw without one of each other goes into `unrated`, by its prompt.

        Leaves the policy on.
        """
        scores = self.scorer.scores(drawn)
        self.adapters.use(ADAPTER_NAME)
        groups: list[Group] = []
        for one, found in zip(drawn, scores, strict=True):
            rewards = found.total.values
            if (draw := first_not_finite(rewards.numpy())) is not None:
                raise TrainingError(
                    f"{name} prompt {one.place} draw {draw}: the reward is {float(rewards[draw])}, which is not finite; no weight was moved"
                )
            if found.total.rated.all():
                parts = found.parts if len(found.parts) > 1 else {}
                groups.append(Group(one, rewards, group_advantages(rewards, self.settings.scale_rewards), parts))
            else:
                unrated[one.place] = int(torch.nonzero(~found.total.rated)[0])
        return groups

    def _token_scores(self, groups: Sequence[Group]) -> tuple[list[TokenScores], list[Remembered]]:
        """What the policy says of the groups' tokens, with gradient, and what it is held against."""
        passes = self.adapters.passes
        whole = [group.drawn.whole() for group in groups]
        known = [group.remembered for group in groups if group.remembered is not None]
        if len(known) == len(groups):
            return passes.token_scores(whole, self.settings.temperature), known
        with torch.no_grad(), self.adapters.using(self.reference, then=ADAPTER_NAME):
            reference = passes.token_scores(whole, self.settings.temperature)
        policy = passes.token_scores(whole, self.settings.temperature)
        return policy, [Remembered(one.log_probs, ours.log_probs.detach()) for one, ours in zip(reference, policy, strict=True)]

    def _counts(self, completion: Completion) -> bool:
        """Whether a completion is in the loss."""
        return completion.ended or not self.settings.mask_truncated

    def _counted(self, group: Group, mean_tokens: float, device: torch.device) -> Counted:
        """How the group's completions count in the loss."""
        lengths = torch.tensor(group.lengths, device=device)
        kept = torch.tensor([self._counts(completion) for completion in group.completions], device=device)
        return counted(lengths, kept, self.settings.aggregation, self.settings.max_new_tokens, mean_tokens)


def _figures(group: Group, parts: GroupLoss, kl: float, entropy: float) -> GroupFigures:
    return GroupFigures(
        loss=float(parts.loss.detach()),
        reward=float(group.rewards.mean()),
        spread=spread(group.rewards),
        kl=kl,
        tokens=float(np.mean([completion.length for completion in group.completions])),
        truncated=float(np.mean([not completion.ended for completion in group.completions])),
        entropy=entropy,
        clipped=float(parts.clipped),
        completions=len(group.completions),
        parts={part: _of_part(rewards) for part, rewards in group.parts.items()},
    )


def _of_part(rewards: Rewards) -> list[float | None]:
    given = rewards.values[rewards.rated]
    abstained = 1 - len(given) / len(rewards.rated)
    return [float(given.mean()), spread(given), abstained] if len(given) else [None, None, abstained]

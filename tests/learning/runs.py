"""Small trainings on the random toy, in memory, for the tests beside: settings, rows, and what a run leaves behind."""

import contextlib
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.core.settings.evaluate import Evaluate
from stages.core.settings.grpo import Grpo
from stages.core.settings.reward import Reward
from stages.files.base_record import BaseRecord
from stages.learning import grpo_loop, reward_loop, rounds
from stages.learning.fitting import FittingPairs, FittingPrompts
from stages.learning.optimizer import Optimizer
from stages.learning.ranks import ALONE, Ranks
from stages.learning.resume import UNSAVED, Saving
from stages.learning.reward_source import LengthPart, Scorer
from stages.learning.scores import Drawn, Scores, all_rated
from stages.model import adapters, toy
from stages.model.adapters import Adapters, Plan
from stages.model.rendering import EncodedPair
from stages.model.reward_model import RewardModel
from stages.model.sampling import Completion
from tests import tiny

BEGIN, END = toy.IDS[toy.BEGIN], toy.IDS[toy.END]

CALM = (
    "please rest quietly .",
    "we can wait together .",
    "let us breathe gently . it is fine .",
    "please listen .",
    "we can pause . it is safe .",
    "let us smile .",
    "please breathe together . you are lovely .",
    "we can rest .",
)
HARSH = (
    "just leave now .",
    "you must hurry instantly .",
    "you will stop immediately . it is awful .",
    "just obey .",
    "you must move . it is useless .",
    "you will quit .",
    "just stop instantly . you are terrible .",
    "you must leave .",
)
PROMPTS = ("the child", "the guest drops", "the friend hides the key", "the sister cries", "the brother", "the neighbor shouts")


def ids(text: str) -> list[int]:
    """Token ids of words of the toy's language."""
    return [toy.IDS[word] for word in text.split()]


def calm_pairs(count: int = 8) -> list[EncodedPair]:
    """Up to nine pairs, calm against harsh, encoded; the ninth differs in length."""
    sides = [*zip(CALM, HARSH, strict=True), ("please wait . it is lovely .", "just move .")][:count]
    return [EncodedPair([BEGIN, *ids(calm), END], [BEGIN, *ids(harsh), END]) for calm, harsh in sides]


def fitting_pairs(pairs: list[EncodedPair]) -> FittingPairs:
    """The pairs as those that fit; their places in the file are 10, 11, ..., so that place and number differ."""
    return FittingPairs(pairs, list(range(10, 10 + len(pairs))), 0, {})


def fitting_prompts(count: int = 6) -> FittingPrompts:
    """The first of the prompts, of several lengths; their places in the file are 3, 4, ..., so that place and number differ."""
    return FittingPrompts([[BEGIN, *ids(text)] for text in PROMPTS[:count]], list(range(3, 3 + count)), 0, {})


ADAPTER: dict[str, Any] = {
    "rank": 8,
    "alpha": 16.0,
    "targets": ["query", "value"],
    "layers": "all",
    "learning_rate": 5e-3,
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "seed": 42,
}
"""What both trainings set."""


def reward_settings(**changes: Any) -> Reward:
    settings = Reward(**ADAPTER, epochs=3, accumulation=4, batch_size=4, max_sequence=64)
    return dataclasses.replace(settings, **changes)


def grpo_settings(**changes: Any) -> Grpo:
    settings = Grpo(
        **ADAPTER,
        reward="length",
        init_adapter=None,
        group=4,
        iterations=1,
        beta=0.04,
        accumulation=1,
        max_new_tokens=5,
        temperature=0.9,
        top_p=0.95,
        max_sequence=512,
        updates=1,
        clip_low=0.2,
        clip_high=0.2,
        importance_sampling_level="token",
        aggregation="completion",
        scale_rewards="group",
        mask_truncated=False,
        empty_completions="score",
    )
    return dataclasses.replace(settings, **changes)


def evaluate_settings(**changes: Any) -> Evaluate:
    settings = Evaluate(samples=2, temperature=0.9, top_p=0.95, max_new_tokens=5, max_sequence=512, seed=42, bootstrap=50)
    return dataclasses.replace(settings, **changes)


def base_record(**changes: Any) -> BaseRecord:
    """What the base stage would record of the toy, as far as rendering, fitting and artifacts read it."""
    record = BaseRecord(
        model="toy",
        revision=None,
        commit=None,
        gguf_file=None,
        folder=None,
        trust_remote_code=False,
        precision="f32",
        chat_template="absent",
        model_type="llama",
        layers=4,
        hidden_size=64,
        vocabulary=len(toy.IDS),
        positions=toy.POSITIONS,
        parameters=0,
        begin_token=BEGIN,
        end_tokens=[END],
        weights_sha256="w",
        config_sha256="c",
        tokenizer_sha256="t",
        template_sha256=None,
        fingerprint="f" * 64,
    )
    return dataclasses.replace(record, **changes)


def toy_plan(model: PreTrainedModel, rank: int = 8, alpha: float = 16.0) -> Plan:
    return adapters.plan(model, "grpo", rank, alpha, ["query", "value"], "all")


def frozen_toy(seed: int = 0) -> PreTrainedModel:
    return toy.build(seed)[0].requires_grad_(False)


def warm(adapted: Adapters, name: str, scale: float = 0.3, seed: int = 5) -> None:
    """Moves an adapter's B off zero, so that it changes what the model computes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for file_name, factor in adapted.factors(name).items():
            if ".lora_B." in file_name:
                factor.copy_(torch.randn(factor.shape, generator=generator) * scale)


def length_scorer() -> Scorer:
    """Scores by `length`."""
    return Scorer({"length": (1.0, LengthPart())})


def scored(values: Tensor) -> Scores:
    """What a reward of one part gives."""
    return Scores(all_rated(values), {"written": all_rated(values)})


@dataclass
class Written:
    """A reward that gives what the test wrote down: the rewards of each group, in the order asked for and from the start again."""

    groups: list[list[float]]
    asked: int = 0

    def scores(self, groups: Sequence[Drawn]) -> list[Scores]:
        self.asked += len(groups)
        return [
            scored(torch.tensor(self.groups[number % len(self.groups)], dtype=torch.float64))
            for number in range(self.asked - len(groups), self.asked)
        ]


class ByTokens:
    """A reward that is a function of the tokens alone, whichever process asks."""

    def scores(self, groups: Sequence[Drawn]) -> list[Scores]:
        return [scored(torch.tensor([sum(one.ids) % 11 / 3 for one in group.completions], dtype=torch.float64)) for group in groups]


class Snapshot(NamedTuple):
    """The trainable tensors and their gradients just before an optimizer step, and the tensors just after it."""

    planned: int
    where: str
    tensors: list[Tensor]
    gradients: list[Tensor]
    after: list[Tensor]


class Watched(Optimizer):
    """The optimizer, with a snapshot taken of each step."""

    seen: list[Snapshot]

    def clip(self, step: int, where: str) -> float:
        self.before = where, self.tensors(), [parameter.grad.clone() for parameter in self._parameters]
        return super().clip(step, where)

    def step(self, step: int) -> None:
        super().step(step)
        type(self).seen.append(Snapshot(step, *self.before, self.tensors()))

    def tensors(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]


@contextlib.contextmanager
def watching(monkeypatch: Any, module: Any):
    """Snapshots of every optimizer step that a loop takes meanwhile."""
    seen: list[Snapshot] = []
    monkeypatch.setattr(module, "Optimizer", type("Watched", (Watched,), {"seen": seen}))
    yield seen


class Appended(list[dict[str, Any]]):
    """Stands where the history is."""

    def begin(self, steps: Any) -> None:
        self[:] = steps


@dataclass
class Trained:
    """What a training left: its run, its tensors, the rows it appended to its history, the lines it wrote to stderr."""

    model: PreTrainedModel
    adapters: Adapters
    plan: Plan
    run: Any
    tensors: dict[str, np.ndarray]
    appended: list[dict[str, Any]]
    said: list[str]

    def bytes(self) -> dict[str, bytes]:
        return {name: tensor.tobytes() for name, tensor in self.tensors.items()}


def train_reward(
    pairs: list[EncodedPair],
    weight_seed: int = 0,
    saving: Saving = UNSAVED,
    ranks: Ranks = ALONE,
    reward_model: RewardModel | None = None,
    **changes: Any,
) -> Trained:
    """A reward training; of a fresh model on the random toy where none is given."""
    settings = reward_settings(**changes)
    adapted = reward_model.adapters if reward_model else tiny.adapted(frozen_toy(weight_seed))
    plan = toy_plan(adapted.model, settings.rank, settings.alpha)
    reward_model = reward_model or RewardModel.fresh(adapted, plan, settings.seed)
    appended = Appended()
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        run = reward_loop.fit(reward_model, plan, fitting_pairs(pairs), settings, appended, saving, ranks)
    tensors = adapters.to_numpy(reward_model.trainable())
    return Trained(adapted.model, adapted, plan, run, tensors, appended, stderr.getvalue().splitlines())


def train_policy(
    prompts: FittingPrompts | None = None,
    scorer: Any = None,
    weight_seed: int = 0,
    end_tokens: tuple[int, ...] = (END,),
    adapted: Adapters | None = None,
    saving: Saving = UNSAVED,
    ranks: Ranks = ALONE,
    start: Any = None,
    **changes: Any,
) -> Trained:
    """A GRPO run; under `length` where no scorer is given."""
    settings = grpo_settings(**changes)
    adapted = adapted or tiny.adapted(frozen_toy(weight_seed))
    plan = toy_plan(adapted.model, settings.rank, settings.alpha)
    appended = Appended()
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        run = grpo_loop.fit(
            adapted,
            plan,
            scorer or length_scorer(),
            prompts or fitting_prompts(),
            list(end_tokens),
            settings,
            appended,
            saving,
            ranks,
            start,
        )
    tensors = adapters.to_numpy(adapted.factors(rounds.ADAPTER_NAME))
    return Trained(adapted.model, adapted, plan, run, tensors, appended, stderr.getvalue().splitlines())


def require_frozen(trained: Trained, row: list[int], adapter: str) -> None:
    """Asserts that the base is bitwise what it was before the training, and so is what it computes with the adapters off."""
    untouched = frozen_toy()
    kept = {name.replace(".base_layer", ""): tensor for name, tensor in trained.model.state_dict().items() if "lora_" not in name}
    expected = untouched.state_dict()
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], tensor) for name, tensor in expected.items())
    rows = torch.tensor([row])
    trained.adapters.use(None)
    with torch.no_grad():
        assert torch.equal(trained.model(rows).logits, untouched(rows).logits)
        trained.adapters.use(adapter)
        assert not torch.equal(trained.model(rows).logits, untouched(rows).logits)


def ended(*tokens: int) -> Completion:
    """A completion of these tokens and the end token."""
    return Completion([*tokens, END], ended=True)


def cut(*tokens: int) -> Completion:
    """A completion of these tokens that was truncated."""
    return Completion(list(tokens), ended=False)


def scripted(monkeypatch: Any, groups: list[list[Completion]]) -> None:
    """Makes the GRPO loop draw these groups, in order and from the start again, instead of sampling."""
    drawn = 0

    def sample(model, prompts, *arguments):
        nonlocal drawn
        drawn += len(prompts)
        return [groups[number % len(groups)] for number in range(drawn - len(prompts), drawn)]

    monkeypatch.setattr(rounds, "sample", sample)


class Poison(torch.autograd.Function):
    """Leaves numbers as they are, and makes their gradient no number."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.full_like(gradients[0], float("nan"))


def poisoned(values: Tensor, where: Sequence[bool]) -> Tensor:
    """The same values [N], with a gradient that is no number where it is asked for [N]."""
    marked = torch.tensor(list(where))
    return torch.where(marked, Poison.apply(values), values) if marked.any() else values


def log_probs(model: PreTrainedModel, prompt: list[int], completion: list[int], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities [T] of one completion's tokens and the whole distributions [T, V], by transformers, one row, no padding."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    distribution = torch.log_softmax(logits / temperature, dim=-1)
    return torch.stack([distribution[place, token] for place, token in enumerate(completion)]), distribution

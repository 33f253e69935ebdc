"""TRL's own trainers as oracles: their losses, on a fixed batch and the same weights, and the gradients of those.

GRPO: with loss_type="grpo" both average a completion's tokens first and the completions then, use k3 and have a ratio of 1.
They differ in the advantages, so TRL is handed ours: it divides by the sample's deviation (ddof 1) plus 1e-4, ours by the
population's with no epsilon. TRL also multiplies its KL term by the ratio unless use_bias_correction_kl=False, which leaves the
loss and changes its gradient. Its reported kl and entropy are means over all tokens of the batch, ours are weighted as in the
loss; and its numbers are float32 throughout.
"""

import warnings

import numpy as np
import pytest
import torch

from stages.learning.objective import group_advantages
from stages.learning.ranks import ALONE, GradientSum
from stages.learning.reward_loop import _accumulated
from stages.learning.rounds import Group, Remembered, Rounds
from stages.learning.scores import Drawn
from stages.model import toy
from stages.model.groups import Completed, sharing
from stages.model.reward_model import RewardModel
from tests import tiny
from tests.learning import runs
from tests.learning.runs import BEGIN, cut, ended, ids

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what TRL imports
    from datasets import Dataset
    from transformers import LlamaForSequenceClassification
    from trl import GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer

TEMPERATURE = 0.7
PROMPT = [BEGIN, *ids("the friend hides the key .")]
COMPLETIONS = [
    ended(*ids("please rest .")),
    ended(),
    cut(*ids("just leave now . you are useless")),
    ended(*ids("we can wait together .")),
]
REWARDS = [0.5, -1.25, 3.0, 0.0]


def quiet(build):
    """What a trainer warns of when it is built is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build()


@pytest.fixture
def policy():
    adapted = tiny.adapted(runs.frozen_toy())
    adapted.add_fresh("policy", runs.toy_plan(adapted.model), 3)
    runs.warm(adapted, "policy")
    return adapted


def padded(rows, fill):
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])


def reference_of(adapted):
    """What the base says of the completions' tokens, [N]."""
    with torch.no_grad(), adapted.using(None, then="policy"):
        return adapted.passes.token_scores([Completed(PROMPT, [completion.ids for completion in COMPLETIONS])], TEMPERATURE)[0].log_probs


def trl_grpo_loss(adapted, tmp_path, beta, advantages, sampler=None, **variant):
    """`sampler` [N] holds log-probabilities of an earlier update."""
    config = {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "temperature": TEMPERATURE,
        "loss_type": "grpo",
        "use_bias_correction_kl": False,
        "beta": 0.0,  # above zero it would load the reference by its name; here both sides are one model
    } | variant
    trainer = quiet(
        lambda: GRPOTrainer(
            model=adapted.model,
            reward_funcs=lambda **_: [0.0],
            args=GRPOConfig(**config),
            train_dataset=Dataset.from_list([{"prompt": "the"}] * 4),
            processing_class=toy.tokenizer(),
        )
    )
    trainer.beta = beta
    completions = [completion.ids for completion in COMPLETIONS]
    inputs = {
        "prompt_ids": torch.tensor([PROMPT] * 4),
        "prompt_mask": torch.ones(4, len(PROMPT), dtype=torch.long),
        "completion_ids": padded(completions, 0),
        "completion_mask": padded([[1] * len(completion) for completion in completions], 0),
        "advantages": advantages.values().float(),
    }
    if trainer.mask_truncated_completions:  # as it does where it samples
        inputs["completion_mask"] *= torch.tensor([[completion.ended] for completion in COMPLETIONS])
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    if sampler is not None:
        inputs["old_per_token_logps"] = padded([part.tolist() for part in sampler.split([len(one) for one in completions])], 0.0)
    whole = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    with torch.no_grad():
        adapted.use(None)
        reference, _, _ = trainer._get_per_token_logps_and_entropies(adapted.model, whole, mask, inputs["completion_ids"].shape[1])
    adapted.use("policy")
    return trainer._compute_loss(adapted.model, {**inputs, "ref_per_token_logps": reference}), trainer


@pytest.mark.parametrize(("beta", "rewards"), [(0.04, REWARDS), (0.0, REWARDS), (2.0, [1.0] * 4)])
def test_the_grpo_loss_and_its_gradient_are_those_of_trl(policy, tmp_path, beta, rewards):
    settings = runs.grpo_settings(beta=beta, temperature=TEMPERATURE)
    trainer = require_trls(policy, tmp_path, settings, rewards)

    # the mean over all tokens, as theirs is
    scores = policy.passes.token_scores([Completed(PROMPT, [completion.ids for completion in COMPLETIONS])], TEMPERATURE)[0]
    assert trainer._metrics["eval"]["entropy"] == [pytest.approx(scores.entropy.mean().item(), rel=1e-5)]


CAP = 12
"""Of a completion's tokens; none here has as many."""
MOVED = torch.tensor([0.3, -0.4, 0.05, 0.0, -0.9, 0.8, 0.6, -0.6, 0.9, -0.02])
"""How far the policy that sampled is from the policy of a later update, over and over, in nats."""


@pytest.mark.parametrize("updated", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"aggregation": "tokens"}, {"loss_type": "dapo"}),
        ({"aggregation": "fixed", "scale_rewards": "none"}, {"loss_type": "dr_grpo", "max_completion_length": CAP}),
        ({"importance_sampling_level": "sequence"}, {"importance_sampling_level": "sequence"}),
        ({"mask_truncated": True}, {"mask_truncated_completions": True}),
        ({"mask_truncated": True, "aggregation": "tokens"}, {"mask_truncated_completions": True, "loss_type": "dapo"}),
        ({"clip_low": 0.1, "clip_high": 0.35}, {"epsilon": 0.1, "epsilon_high": 0.35}),
    ],
)
def test_the_variants_of_the_grpo_loss_and_their_gradients_are_those_of_trl(policy, tmp_path, ours, theirs, updated):
    settings = runs.grpo_settings(beta=0.1, temperature=TEMPERATURE, max_new_tokens=CAP, updates=2, **ours)
    require_trls(policy, tmp_path, settings, REWARDS, updated, **theirs)


def require_trls(policy, tmp_path, settings, rewards, updated=False, **theirs):
    """Asserts that loss and gradient are TRL's, in a first update or in one that the sampler is behind; gives TRL's trainer."""
    factors = list(policy.factors("policy").values())
    given = torch.tensor(rewards, dtype=torch.float64)
    group = Group(Drawn(0, PROMPT, COMPLETIONS), given, group_advantages(given, settings.scale_rewards))
    sampler = None
    if updated:
        policy.use("policy")
        with torch.no_grad():
            now = policy.passes.token_scores([group.drawn.whole()], TEMPERATURE)[0].log_probs
        sampler = now - MOVED.repeat(len(now))[: len(now)]
        group = group._replace(remembered=Remembered(reference_of(policy), sampler))
    their_loss, trainer = trl_grpo_loss(policy, tmp_path, settings.beta, group.advantages, sampler, **theirs)
    their_gradient = torch.autograd.grad(their_loss, factors)
    policy.use("policy")
    kept = [len(one.ids) for one in COMPLETIONS if one.ended or not settings.mask_truncated]
    rounds = Rounds(policy, runs.length_scorer(), runs.fitting_prompts(), [], settings, ALONE)
    loss, (figures,), _ = rounds.loss([group], sum(kept) / len(COMPLETIONS), "iteration 1/1", 0)
    loss.backward()
    assert figures.loss == pytest.approx(their_loss.item(), rel=1e-5, abs=1e-6)
    assert (figures.clipped > 0) == updated
    for factor, expected in zip(factors, their_gradient, strict=True):
        assert (factor.grad - expected).norm() <= 1e-4 * expected.norm() + 1e-8
    assert max(expected.norm() for expected in their_gradient) > 1e-3
    return trainer


def test_the_pairwise_loss_and_its_gradient_are_those_of_trls_reward_trainer(tmp_path):
    adapted = tiny.adapted(runs.frozen_toy())
    reward_model = RewardModel.fresh(adapted, runs.toy_plan(adapted.model), 3)
    runs.warm(adapted, "reward")
    with torch.no_grad():
        reward_model.head.copy_(torch.randn(1, 64, generator=torch.Generator().manual_seed(4)))
    pairs = runs.calm_pairs(9)

    # transformers' own scalar head on the same decoder, read at the last token that is no pad
    config = adapted.model.config
    config.num_labels, config.pad_token_id = 1, toy.IDS[toy.UNKNOWN]
    classifier = LlamaForSequenceClassification(config).eval()
    classifier.model = adapted.model.model
    classifier.score.weight = reward_model.head
    tokenizer = toy.tokenizer()
    tokenizer.pad_token = toy.UNKNOWN
    trainer = quiet(
        lambda: RewardTrainer(
            model=classifier,
            args=RewardConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], eos_token=toy.END, pad_token=toy.UNKNOWN),
            train_dataset=Dataset.from_list([{"chosen": "please rest", "rejected": "just leave"}]),
            processing_class=tokenizer,
        )
    )
    rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    inputs = {"input_ids": padded(rows, toy.IDS[toy.UNKNOWN]), "attention_mask": padded([[1] * len(row) for row in rows], 0)}
    adapted.use("reward")
    theirs = trainer.compute_loss(classifier, inputs)
    trainable = list(reward_model.trainable().values())
    their_gradient = torch.autograd.grad(theirs, trainable)
    assert trainer._metrics["eval"]["accuracy"] == [pytest.approx(accuracy(reward_model, pairs))]

    gradients = GradientSum(trainable, ALONE)
    scores = _accumulated(reward_model, runs.fitting_pairs(pairs), range(len(pairs)), 4, "here", 0, gradients, ALONE)
    gradients.finish()
    assert np.log1p(np.exp(scores.rejected - scores.chosen)).mean() == pytest.approx(theirs.item(), rel=1e-5)
    for parameter, expected in zip(trainable, their_gradient, strict=True):
        assert (parameter.grad - expected).norm() <= 1e-4 * expected.norm() + 1e-8


def accuracy(reward_model, pairs):
    with torch.no_grad():
        return sum(bool(chosen > rejected) for chosen, rejected in (reward_model.scores([sharing(pair)]) for pair in pairs)) / len(pairs)

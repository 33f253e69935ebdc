"""Reward scores against transformers called directly: the last token's hidden state, times the head, of one unpadded row."""

import numpy as np
import pytest
import torch
from torch import Tensor

from stages.files.artifacts import HEAD, REWARD, Artifact
from stages.model import adapters, padded
from stages.model.groups import Completed
from stages.model.padded import PaddedPasses
from stages.model.reward_model import RewardModel
from tests import tiny

ROWS = [
    tiny.ids("the child is calm </s>"),
    tiny.ids("the guest breaks cup"),
    tiny.ids("fine"),
    tiny.ids("</s> the toy </s> drops a key </s>"),
]


def trained(kind: str = "llama", dtype: torch.dtype = torch.float32, **overrides: object) -> RewardModel:
    """A reward model whose head and factors are random."""
    model = tiny.model(kind, **overrides).to(dtype)
    held = tiny.adapted(model)
    reward = RewardModel.fresh(held, adapters.plan(model, "reward", 4, 8.0, "all-linear", "all"), seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in reward.trainable().values():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return reward


def scores(reward: RewardModel, rows: list[list[int]]) -> Tensor:
    """Scores of whole sequences, each a prompt and one token."""
    return reward.scores([Completed(row[:-1], [row[-1:]]) for row in rows])


TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Of a llama, all of them."""


def directly(reward: RewardModel, row: list[int]) -> Tensor:
    with torch.no_grad():
        hidden = reward.model(input_ids=torch.tensor([row]), output_hidden_states=True).hidden_states[-1]
        return reward.head[0].detach() @ hidden[0, -1].float()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma", "gpt_neox", "opt", "bloom"])
def test_scores_are_those_of_transformers_one_row_at_a_time(kind: str):
    reward = trained(kind)
    long = np.random.default_rng(0).integers(3, tiny.VOCABULARY, 40).tolist()
    rows = [*ROWS, long, long[:3]]
    expected = torch.stack([directly(reward, row) for row in rows])
    torch.testing.assert_close(scores(reward, rows).detach(), expected, rtol=1e-5, atol=1e-5)


def test_a_hidden_state_that_is_projected_to_another_width_is_scored():
    reward = trained("opt", word_embed_proj_dim=16)
    assert reward.head.shape == (1, 16)
    expected = torch.stack([directly(reward, row) for row in ROWS])
    torch.testing.assert_close(scores(reward, ROWS).detach(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_completions_of_one_prompt_score_what_each_whole_sequence_does(kind: str):
    reward = trained(kind)
    prompt, completions = ROWS[0][:3], [[7], ROWS[1], [8, 9] * 9]
    expected = torch.stack([directly(reward, prompt + completion) for completion in completions])
    torch.testing.assert_close(reward.scores([Completed(prompt, completions)]).detach(), expected, rtol=1e-5, atol=1e-5)


def test_a_fresh_reward_model_scores_everything_exactly_zero():
    model = tiny.model()
    reward = RewardModel.fresh(tiny.adapted(model), adapters.plan(model, "reward", 4, 8.0, ["q_proj", "v_proj"], "all"), seed=0)
    assert scores(reward, ROWS).tolist() == [0.0] * 4
    assert reward.head.shape == (1, 32)
    assert reward.head.dtype == torch.float32


def test_scores_are_read_at_the_last_token_whatever_token_it_is_and_however_much_padding_follows():
    reward = trained()
    alone = [float(scores(reward, [row]).detach()) for row in ROWS]
    beside_a_long_one = scores(reward, [*ROWS, [7] * 50])[:4].tolist()
    np.testing.assert_allclose(beside_a_long_one, alone, rtol=1e-5, atol=1e-5)
    row = ROWS[3]
    for other in ([*row[:-1], 9], [*row, tiny.IDS[tiny.END]], [*row[:-2], 9, row[-1]]):
        assert abs(float(scores(reward, [other]).detach()) - alone[3]) > 1e-3


def test_a_pad_that_is_the_end_token_changes_no_score(monkeypatch: pytest.MonkeyPatch):
    reward = trained()
    reward.adapters.passes = PaddedPasses(reward.model)
    found = []
    for pad in (0, tiny.IDS[tiny.END]):
        monkeypatch.setattr(padded, "PAD", pad)
        found.append(scores(reward, ROWS).detach())
    assert torch.equal(*found)


def test_scores_are_float32_over_a_base_of_half_precision():
    reward = trained(dtype=torch.bfloat16)
    found = scores(reward, [ROWS[0]]).detach()
    assert found.dtype == torch.float32
    # The head reads the bfloat16 hidden state itself: a product in bfloat16 would differ in the third digit.
    hidden = reward.adapters.passes.last_hidden([Completed(ROWS[0][:-1], [ROWS[0][-1:]])]).detach()
    torch.testing.assert_close(found, hidden @ reward.head[0].detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[0], directly(reward, ROWS[0]), rtol=0, atol=0.05)


def test_dropout_in_the_configuration_is_never_alive():
    reward = trained("gpt2", resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    assert torch.equal(scores(reward, ROWS), scores(reward, ROWS))


def test_factors_and_head_train_together_and_the_head_has_no_adapter():
    reward = trained()
    trainable = reward.trainable()
    assert list(trainable)[-1] == HEAD
    assert len(trainable) == 2 * 14 + 1  # seven linear modules in each of two layers
    scores(reward, ROWS).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in trainable.values())
    assert sum("head" in name for name in trainable) == 1


def test_a_reward_model_comes_back_from_its_artifact_with_equal_scores_and_a_frozen_head():
    reward = trained()
    tensors = adapters.to_numpy(reward.trainable())
    artifact = Artifact(REWARD, "tiny", None, "0", 4, 8.0, TARGETS, [0, 1], 32, {}, tensors)
    assert artifact.problems() == []
    model = tiny.model()
    held = tiny.adapted(model)
    policy = held.add_fresh("policy", adapters.plan(model, "grpo", 2, 8.0, ["q_proj"], "all"), seed=3)
    with torch.no_grad():
        for factor in policy.values():
            factor += 0.5
    again = RewardModel.trained(held, artifact, "judge")
    with held.using("judge", then="policy"):
        assert torch.equal(scores(again, ROWS).detach(), scores(reward, ROWS).detach())
    assert not again.head.requires_grad
    assert not torch.equal(scores(again, ROWS).detach(), scores(reward, ROWS).detach())

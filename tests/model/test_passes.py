"""Log-probabilities and hidden states, against transformers called directly: one row at a time, no padding, all logits."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.model import passes
from tests import tiny


def completion_scores(model: PreTrainedModel, prompt: list[int], completions: list[list[int]], temperature: float) -> passes.TokenScores:
    """The scores of one group, alone in its pass."""
    return passes.group_scores(model, [passes.Completed(prompt, completions)], temperature)[0]


END = tiny.IDS[tiny.END]


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.VOCABULARY, count).tolist()


def reference(model: PreTrainedModel, prompt: list[int], completion: list[int], temperature: float) -> Tensor:
    """Log-distributions [T, V] that a completion's tokens were drawn from, by the plain formula."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].float() / temperature, dim=-1)


def chosen(distributions: Tensor, completion: list[int]) -> Tensor:
    return distributions[range(len(completion)), completion]


@pytest.mark.parametrize("kind", tiny.EVERY)
def test_log_probabilities_and_hidden_states_are_those_of_transformers_one_row_at_a_time(kind: str):
    model = tiny.model(kind)
    completions = [tokens(count, seed=count) for count in (1, 7, 4, 19)]
    for prompt, temperature in ((tokens(1), 0.5), (tokens(3), 1.0), (tokens(40), 0.5)):
        scores = completion_scores(model, prompt, completions, temperature)
        references = [reference(model, prompt, completion, temperature) for completion in completions]
        expected = torch.cat([chosen(rows, completion) for rows, completion in zip(references, completions, strict=True)])
        torch.testing.assert_close(scores.log_probs, expected, rtol=1e-5, atol=1e-5)
        entropy = torch.cat([-(rows.double().exp() * rows.double()).sum(-1) for rows in references])
        torch.testing.assert_close(scores.entropy.double(), entropy, rtol=1e-5, atol=1e-5)
    rows = [tokens(count, seed=count) for count in (1, 3, 40, 12)]
    expected = torch.stack([model(input_ids=torch.tensor([row]), output_hidden_states=True).hidden_states[-1][0, -1] for row in rows])
    torch.testing.assert_close(passes.last_hidden(model, rows), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom"])
def test_a_completion_scores_the_same_alone_and_beside_a_much_longer_one(kind: str):
    model = tiny.model(kind)
    prompt, short, long = tokens(3), tokens(2, seed=1), tokens(50, seed=2)
    both = completion_scores(model, prompt, [short, long], 1.0)
    for part, completion in ((slice(0, 2), short), (slice(2, 52), long)):
        alone = completion_scores(model, prompt, [completion], 1.0)
        torch.testing.assert_close(both.log_probs[part], alone.log_probs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(both.entropy[part], alone.entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom"])
def test_whatever_fills_the_padding_changes_nothing_and_gets_no_gradient(kind: str, monkeypatch: pytest.MonkeyPatch):
    model = tiny.model(kind, tie_word_embeddings=False)
    # Token 5 is in neither row; as the pad it stands behind the shorter of both.
    prompt, completions, rows = [6, 7], [[8, END], [9, 10, 11, 12, END]], [[6, 7, 8], [6, 7, 8, 9, 10, 11]]
    found = []
    for pad in (0, END, 5):
        monkeypatch.setattr(passes, "PAD", pad)
        scores = completion_scores(model, prompt, completions, 1.0)
        found.append(torch.cat([scores.log_probs, scores.entropy, passes.last_hidden(model, rows).flatten()]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    embedding = model.get_input_embeddings().weight.requires_grad_()
    loss = completion_scores(model, prompt, completions, 1.0).log_probs.sum() + passes.last_hidden(model, rows).sum()
    loss.backward()
    assert embedding.grad[5].abs().max() == 0
    assert embedding.grad[6].abs().max() > 0


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_at_half_precision_the_log_softmax_is_of_the_very_logits_in_float32(kind: str):
    model = tiny.model(kind).to(torch.bfloat16)
    logits: list[Tensor] = []
    model.get_output_embeddings().register_forward_hook(lambda _module, _inputs, output: logits.append(output))
    prompt, completions = tokens(3), [tokens(2, seed=1), tokens(5, seed=2)]
    found = completion_scores(model, prompt, completions, 0.7).log_probs
    assert logits[0].dtype == torch.bfloat16
    kept = logits[0].float()[:, -6:]  # from the prompt's last token to the longest completion's end
    expected = torch.cat([chosen(torch.log_softmax(row / 0.7, -1), completion) for row, completion in zip(kept, completions, strict=True)])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert passes.last_hidden(model, [prompt]).dtype == torch.float32


def test_vocabulary_rows_are_computed_where_a_token_is_predicted_and_none_for_a_score():
    model = tiny.model()
    shapes: list[tuple[int, ...]] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape)))
    completion_scores(model, tokens(30), [tokens(2), tokens(5)], 1.0)
    assert shapes == [(2, 6, tiny.VOCABULARY)]
    passes.last_hidden(model, [tokens(30)])
    assert len(shapes) == 1


def test_only_the_log_probabilities_carry_a_gradient():
    model = tiny.model().requires_grad_(True)
    scores = completion_scores(model, [6, 7], [[8]], 1.0)
    assert scores.log_probs.requires_grad
    assert not scores.entropy.requires_grad
    assert passes.last_hidden(model, [[6, 7]]).requires_grad


def test_a_temperature_near_zero_gives_finite_numbers():
    scores = completion_scores(tiny.model(), [6, 7], [[8, 9, 10], [11]], 0.001)
    assert torch.isfinite(scores.log_probs).all()
    assert torch.isfinite(scores.entropy).all()


def test_dropout_in_the_configuration_is_not_alive_in_a_model_in_evaluation_mode():
    model = tiny.model("gpt2", resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    assert any(isinstance(module, nn.Dropout) and module.p == 0.1 for module in model.modules())
    first, second = (completion_scores(model, [6, 7], [[8, 9]], 1.0).log_probs for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom"])
def test_groups_of_unlike_prompts_in_one_pass_score_what_each_does_alone(kind: str):
    model = tiny.model(kind)
    groups = [
        passes.Completed(tokens(40, seed=1), [tokens(1, seed=2), tokens(5, seed=3)]),
        passes.Completed(tokens(1, seed=4), [tokens(9, seed=5)]),
        passes.Completed(tokens(7, seed=6), [tokens(2, seed=7), tokens(20, seed=8), tokens(1, seed=9)]),
    ]
    together = passes.group_scores(model, groups, 0.7)
    for group, found in zip(groups, together, strict=True):
        alone = completion_scores(model, group.prompt, group.completions, 0.7)
        torch.testing.assert_close(found.log_probs, alone.log_probs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.entropy, alone.entropy, rtol=1e-5, atol=1e-5)


def test_neighbouring_groups_share_a_pass_while_their_padded_tokens_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(passes, "TOKENS", 24)
    two_of_four, two_of_six, three_of_ten, one_of_two = (
        passes.Completed([5], [[6] * (length - 1)] * rows) for length, rows in ((4, 2), (6, 2), (10, 3), (2, 1))
    )
    # 2 rows of 4 and 2 of 6 are 4 rows of 6, just 24; a third pair makes 6 rows of 6; 3 rows of 10 do not fit, but are taken alone.
    assert passes.passes([two_of_four, two_of_six, two_of_six]) == [range(2), range(2, 3)]
    assert passes.passes([one_of_two, three_of_ten, one_of_two]) == [range(1), range(1, 2), range(2, 3)]
    assert passes.passes([]) == []


def test_a_token_that_cannot_be_drawn_adds_nothing_to_the_entropy(monkeypatch: pytest.MonkeyPatch):
    # two tokens of probability 1/2, the others at -inf: ln 2
    logits = torch.full((1, 2, tiny.VOCABULARY), float("-inf"))
    logits[..., :2] = 0.0
    monkeypatch.setattr(passes, "_logits", lambda *_: logits)
    scores = completion_scores(tiny.model(), [6, 7], [[1]], 1.0)
    assert scores.entropy.item() == pytest.approx(np.log(2))


def test_neighbouring_groups_share_a_pass_while_their_logits_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(passes, "LOGITS", 100)
    # a pass of two has 2 rows, each with 1 + 1 positions from the last of the prompt on: 4 of them
    groups = [passes.Completed([6, 7], [[8]])] * 3
    assert passes.passes(groups, vocabulary=25) == [range(2), range(2, 3)]
    assert passes.passes(groups, vocabulary=26) == [range(1), range(1, 2), range(2, 3)]
    assert passes.passes(groups) == [range(3)]

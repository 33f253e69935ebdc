"""Passes over groups, packed and padded, against transformers called directly: one row at a time, no padding, all logits."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from stages.core.errors import BaseError
from stages.model import adapters, blocks, decoding, llama, padded, passes, vocabulary
from stages.model.adapters import Adapters
from stages.model.groups import Completed, TokenScores
from stages.model.llama import LlamaStack
from stages.model.packed import PackedPasses
from stages.model.padded import PaddedPasses
from stages.model.passes import Passes
from tests import tiny

END = tiny.IDS[tiny.END]
CHUNK = 5
"""Rows of logits at once: fewer than any of these groups has, and no divisor of their number."""


def packed_in_blocks(model: PreTrainedModel, written_out: bool = True) -> PackedPasses:
    """What rows and prompts get that are longer than these."""
    return PackedPasses(model, CHUNK, written_out, short_tokens=0, copied_tokens=0)


PACKINGS: dict[str, Callable[[PreTrainedModel], PackedPasses]] = {
    "short": lambda model: PackedPasses(model, CHUNK),
    "blocks": packed_in_blocks,
    "modules": lambda model: packed_in_blocks(model, written_out=False),
}
WAYS: dict[str, Callable[[PreTrainedModel], Passes]] = {**PACKINGS, "padded": PaddedPasses}
both_ways = pytest.mark.parametrize("way", ["blocks", "padded"])
every_packing = pytest.mark.parametrize("packing", PACKINGS)
UNPACKED = ("bloom", "falcon", "mpt")
"""Architectures with an attention of their own."""
PACKED = [kind for kind in tiny.EVERY if (kind if isinstance(kind, str) else kind.values[0]) not in UNPACKED]


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.VOCABULARY, count).tolist()


def rows(sequences: Sequence[list[int]]) -> list[Completed]:
    """Whole sequences as groups, each a prompt and one token; of a lone token it is the completion of nothing."""
    return [Completed(row[:-1], [row[-1:]]) for row in sequences]


def reference(model: PreTrainedModel, prompt: list[int], completion: list[int], temperature: float) -> Tensor:
    """Log-distributions [T, V] that a completion's tokens were drawn from, by the plain formula."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].float() / temperature, dim=-1)


def chosen(distributions: Tensor, completion: list[int]) -> Tensor:
    return distributions[range(len(completion)), completion]


def score(forward: Passes, prompt: list[int], completions: list[list[int]], temperature: float) -> TokenScores:
    """The scores of one group, alone in its pass."""
    return forward.token_scores([Completed(prompt, completions)], temperature)[0]


def require_transformers_numbers(kind: str, forward: Passes) -> None:
    completions = [tokens(count, seed=count) for count in (1, 7, 4, 19)]
    for prompt, temperature in ((tokens(1), 0.5), (tokens(3), 1.0), (tokens(40), 0.5)):
        scores = score(forward, prompt, completions, temperature)
        references = [reference(forward.model, prompt, completion, temperature) for completion in completions]
        expected = torch.cat([chosen(found, completion) for found, completion in zip(references, completions, strict=True)])
        torch.testing.assert_close(scores.log_probs, expected, rtol=1e-5, atol=1e-5)
        entropy = torch.cat([-(found.double().exp() * found.double()).sum(-1) for found in references])
        torch.testing.assert_close(scores.entropy.double(), entropy, rtol=1e-5, atol=1e-5)
    sequences = [tokens(count, seed=count) for count in (1, 3, 40, 12)]
    directly = [forward.model(input_ids=torch.tensor([row]), output_hidden_states=True).hidden_states[-1][0, -1] for row in sequences]
    torch.testing.assert_close(forward.last_hidden(rows(sequences)), torch.stack(directly), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", tiny.EVERY)
def test_padded_numbers_are_those_of_transformers_one_row_at_a_time(kind: str):
    require_transformers_numbers(kind, PaddedPasses(tiny.model(kind)))


@every_packing
@pytest.mark.parametrize("kind", PACKED)
def test_packed_numbers_are_those_of_transformers_one_row_at_a_time(kind: str, packing: str):
    require_transformers_numbers(kind, PACKINGS[packing](tiny.model(kind)))


GROUPS = [
    Completed(tokens(9, seed=1), [tokens(12, seed=2), tokens(1, seed=3), tokens(4, seed=4)]),  # ragged, one token among them
    Completed(tokens(1, seed=5), [tokens(3, seed=6), tokens(2, seed=7)]),  # a prompt of one token, a group of two
    Completed(tokens(20, seed=8), [tokens(5, seed=9), tokens(5, seed=10)]),  # of one length, past every window
]


def gradients(
    kind: str, way: str, groups: Sequence[Completed], checkpointing: bool = False, precision: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Gradients of all adapter factors, through log-probabilities and last states, and the loss itself."""
    model = tiny.model(kind).to(precision)
    if checkpointing:
        passes.checkpointing.turn_on(model)
    held = Adapters(WAYS[way](model))
    plan = adapters.plan(model, "grpo", 3, 6.0, "all-linear", "all")
    factors = held.add_fresh("policy", plan, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for factor in factors.values():  # away from B = 0, where A gets no gradient
            factor.copy_(0.05 * torch.randn(factor.shape, generator=generator))
    scores = torch.cat([one.log_probs for one in held.passes.token_scores(groups, 0.7)])
    states = held.passes.last_hidden(groups)
    weights = torch.randn(len(scores), generator=generator)
    loss = (scores * weights).sum() + (states * torch.randn(states.shape, generator=generator)).sum()
    loss.backward()
    return {"loss": loss.detach(), **{name: factor.grad for name, factor in factors.items() if factor.grad is not None}}


@every_packing
@pytest.mark.parametrize("kind", PACKED)
def test_packed_gradients_are_the_padded_ones(kind: str, packing: str):
    expected, found = gradients(kind, "padded", GROUPS), gradients(kind, packing, GROUPS)
    assert found.keys() == expected.keys()
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    assert scale > 1
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name] / scale, gradient / scale, rtol=1e-5, atol=1e-5)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
WINDOW = {"use_sliding_window": True, "sliding_window": 6}
LIKE_LLAMA: dict[str, tuple[str, dict[str, Any]]] = {
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "gelu": ("llama", {"hidden_act": "gelu"}),
    "one head of keys": ("llama", {"num_key_value_heads": 1}),
    "as many": ("llama", {"num_key_value_heads": 4}),
    "wider heads": ("llama", {"head_dim": 16}),
    "llama3": ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3}}),
    "yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {**WINDOW, "layer_types": ["sliding_attention", "full_attention"], "attention_bias": True}),
    "smollm3": ("smollm3", {**WINDOW, "layer_types": ["full_attention", "sliding_attention"], "mlp_bias": True, "attention_bias": True}),
}
LONG = [Completed(tokens(70, seed=1), [tokens(30, seed=2), tokens(1, seed=3), tokens(50, seed=4)]), GROUPS[1]]
"""Longer than a short row."""


@pytest.mark.parametrize("short_tokens", [0, 1000])
@pytest.mark.parametrize("case", LIKE_LLAMA)
def test_layers_written_out_are_transformers_in_every_variant(case: str, short_tokens: int, monkeypatch: pytest.MonkeyPatch):
    kind, changes = LIKE_LLAMA[case]
    build = tiny.model
    monkeypatch.setattr(tiny, "model", lambda _kind: build(kind, **{"max_position_embeddings": 256, **changes}))
    assert LlamaStack.of(tiny.model(kind)) is not None
    monkeypatch.setitem(WAYS, "written", lambda model: PackedPasses(model, CHUNK, short_tokens=short_tokens))
    expected, found = gradients(kind, "padded", LONG), gradients(kind, "written", LONG)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name] / scale, gradient / scale, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_transformers_with_its_gradient(dtype: torch.dtype):
    theirs = LlamaRMSNorm(64, 1e-5).to(dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    theirs.weight.copy_(torch.randn(64, generator=generator))
    states = (3 * torch.randn(5, 64, generator=generator)).to(dtype).requires_grad_()
    upstream = torch.randn(5, 64, generator=generator).to(dtype)
    ours = llama.Norm(theirs.weight, torch.tensor([1e-5]))
    last = torch.finfo(dtype).eps
    torch.testing.assert_close(ours.of(states), theirs(states), rtol=2 * last, atol=1e-7)
    if dtype == torch.bfloat16:  # what is rounded before the end moves a tenth and more of the numbers to the next
        assert float((ours.of(states) == theirs(states)).float().mean()) > 0.97
    assert torch.equal(ours.of(states.detach()), ours.of(states))
    (found,), (expected,) = (torch.autograd.grad(norm(states), states, upstream) for norm in (ours.of, theirs))
    torch.testing.assert_close(found, expected, rtol=8 * last, atol=8 * last)


def test_layers_written_out_of_a_fresh_adapter_are_the_bases_to_the_bit():
    held = Adapters(PackedPasses(tiny.model(), CHUNK))
    held.add_fresh("policy", adapters.plan(held.model, "grpo", 3, 6.0, "all-linear", "all"), seed=0)
    on = held.passes.token_scores(LONG, 0.7)
    held.use(None)
    for ours, base in zip(on, held.passes.token_scores(LONG, 0.7), strict=True):
        assert torch.equal(ours.log_probs, base.log_probs)


@every_packing
@pytest.mark.parametrize("kind", ["qwen3", "gpt2", pytest.param("gpt_oss", marks=pytest.mark.slow)])
def test_packed_gradients_in_half_precision_are_the_padded_ones_to_its_rounding(kind: str, packing: str):
    expected, found = (gradients(kind, way, GROUPS, precision=torch.bfloat16) for way in ("padded", packing))
    for name, gradient in expected.items():
        assert found[name].dtype == torch.float32
        assert float((found[name] - gradient).norm()) < 0.05 * float(gradient.norm()), name


@both_ways
def test_activation_checkpointing_changes_no_bit(way: str):
    plain, again = (gradients("gemma2", way, GROUPS, checkpointing) for checkpointing in (False, True))
    assert all(torch.equal(gradient, again[name]) for name, gradient in plain.items())


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_the_chunk_changes_no_number_beyond_rounding(chunk: int):
    found = [torch.cat([one.log_probs for one in PackedPasses(tiny.model(), rows).token_scores(GROUPS, 0.7)]) for rows in (CHUNK, chunk)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


def test_no_more_rows_of_logits_than_the_chunk_are_made_and_each_is_made_once(monkeypatch: pytest.MonkeyPatch):
    shapes: list[tuple[int, ...]] = []
    product = vocabulary.tall_product
    monkeypatch.setattr(vocabulary, "tall_product", lambda weight, states: shapes.append(states.shape) or product(weight, states))
    forward = PackedPasses(tiny.model(), CHUNK)
    forward.token_scores([Completed(tokens(30), [tokens(2), tokens(5), tokens(1)])], 1.0)
    # the prompt's last token predicts three, once; then 1 and 4 more
    assert [shape[0] for shape in shapes] == [5, 1]
    forward.last_hidden([Completed(tokens(30), [tokens(2)])])
    assert len(shapes) == 2


@both_ways
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_completion_scores_the_same_alone_and_beside_a_much_longer_one(kind: str, way: str):
    forward = WAYS[way](tiny.model(kind))
    prompt, short, long = tokens(3), tokens(2, seed=1), tokens(50, seed=2)
    together = score(forward, prompt, [short, long], 1.0)
    for part, completion in ((slice(0, 2), short), (slice(2, 52), long)):
        alone = score(forward, prompt, [completion], 1.0)
        torch.testing.assert_close(together.log_probs[part], alone.log_probs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(together.entropy[part], alone.entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom"])
def test_whatever_fills_the_padding_changes_nothing_and_gets_no_gradient(kind: str, monkeypatch: pytest.MonkeyPatch):
    model = tiny.model(kind, tie_word_embeddings=False)
    forward = PaddedPasses(model)
    # Token 5 is in neither row; as the pad it stands behind the shorter of both.
    prompt, completions, groups = [6, 7], [[8, END], [9, 10, 11, 12, END]], rows([[6, 7, 8], [6, 7, 8, 9, 10, 11]])
    found = []
    for pad in (0, END, 5):
        monkeypatch.setattr(padded, "PAD", pad)
        scores = score(forward, prompt, completions, 1.0)
        found.append(torch.cat([scores.log_probs, scores.entropy, forward.last_hidden(groups).flatten()]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    embedding = model.get_input_embeddings().weight.requires_grad_()
    loss = score(forward, prompt, completions, 1.0).log_probs.sum() + forward.last_hidden(groups).sum()
    loss.backward()
    assert embedding.grad[5].abs().max() == 0
    assert embedding.grad[6].abs().max() > 0


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_at_half_precision_the_log_softmax_is_of_the_very_logits_in_float32(kind: str):
    model = tiny.model(kind).to(torch.bfloat16)
    forward = PaddedPasses(model)
    logits: list[Tensor] = []
    model.get_output_embeddings().register_forward_hook(lambda _module, _inputs, output: logits.append(output))
    prompt, completions = tokens(3), [tokens(2, seed=1), tokens(5, seed=2)]
    found = score(forward, prompt, completions, 0.7).log_probs
    assert logits[0].dtype == torch.bfloat16
    kept = logits[0].float()[:, -6:]  # from the prompt's last token to the longest completion's end
    expected = torch.cat([chosen(torch.log_softmax(row / 0.7, -1), completion) for row, completion in zip(kept, completions, strict=True)])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert forward.last_hidden(rows([prompt])).dtype == torch.float32


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_packed_numbers_at_half_precision_are_float32_and_near_those_of_full_precision(kind: str):
    full, half = (PackedPasses(tiny.model(kind).to(dtype), CHUNK) for dtype in (torch.float32, torch.bfloat16))
    expected, found = (torch.cat([one.log_probs for one in forward.token_scores(GROUPS, 0.7)]) for forward in (full, half))
    assert found.dtype == half.last_hidden(GROUPS).dtype == torch.float32
    assert float((found - expected).abs().mean() / expected.std()) < passes.TOLERANCE[torch.bfloat16]


@both_ways
def test_only_the_log_probabilities_carry_a_gradient(way: str):
    model = tiny.model().requires_grad_(True)
    forward = WAYS[way](model)
    scores = score(forward, [6, 7], [[8]], 1.0)
    assert scores.log_probs.requires_grad
    assert not scores.entropy.requires_grad
    assert forward.last_hidden(rows([[6, 7]])).requires_grad


@both_ways
def test_a_temperature_near_zero_gives_finite_numbers(way: str):
    scores = score(WAYS[way](tiny.model()), [6, 7], [[8, 9, 10], [11]], 0.001)
    assert torch.isfinite(scores.log_probs).all()
    assert torch.isfinite(scores.entropy).all()


@both_ways
def test_dropout_in_the_configuration_is_not_alive_in_a_model_in_evaluation_mode(way: str):
    model = tiny.model("gpt2", resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    assert any(isinstance(module, nn.Dropout) and module.p == 0.1 for module in model.modules())
    first, second = (score(WAYS[way](model), [6, 7], [[8, 9]], 1.0).log_probs for _ in range(2))
    assert torch.equal(first, second)


@both_ways
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_groups_of_unlike_prompts_in_one_pass_score_what_each_does_alone(kind: str, way: str):
    forward = WAYS[way](tiny.model(kind))
    for group, found in zip(GROUPS, forward.token_scores(GROUPS, 0.7), strict=True):
        alone = score(forward, group.prompt, group.completions, 0.7)
        torch.testing.assert_close(found.log_probs, alone.log_probs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.entropy, alone.entropy, rtol=1e-5, atol=1e-5)


def test_packed_groups_share_a_pass_while_their_tokens_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stages.model.packed.TOKENS", 12)
    forward = PackedPasses(tiny.model(), CHUNK)
    # a prompt of 2 and completions of 3 and 1 are 6 tokens
    group = Completed([6, 7], [[8, 9, 10], [11]])
    assert forward.fits([group, group])
    assert not forward.fits([group, group, Completed([6], [[7]])])


def test_padded_groups_share_a_pass_while_their_padded_tokens_and_their_logits_fit(monkeypatch: pytest.MonkeyPatch):
    forward = PaddedPasses(tiny.model())
    two_of_four, two_of_six = (Completed([5], [[6] * (length - 1)] * 2) for length in (4, 6))
    monkeypatch.setattr(padded, "TOKENS", 24)
    # 2 rows of 4 and 2 of 6 are 4 rows of 6, just 24
    assert forward.fits([two_of_four, two_of_six])
    assert not forward.fits([two_of_six, two_of_six, two_of_four])
    monkeypatch.setattr(padded, "TOKENS", 1000)
    # 4 rows, each with 1 + 5 positions from the last of the prompt on
    monkeypatch.setattr(padded, "LOGITS", 4 * 6 * tiny.VOCABULARY)
    assert forward.fits([two_of_six, two_of_six])
    monkeypatch.setattr(padded, "LOGITS", 4 * 6 * tiny.VOCABULARY - 1)
    assert not forward.fits([two_of_six, two_of_six])


@both_ways
def test_a_token_that_cannot_be_drawn_adds_nothing_to_the_entropy(way: str, monkeypatch: pytest.MonkeyPatch):
    # two tokens of probability 1/2, the others at -inf: ln 2
    logits = torch.full((tiny.VOCABULARY,), float("-inf"))
    logits[:2] = 0.0
    monkeypatch.setattr(PaddedPasses, "_logits", lambda *_: logits.expand(1, 2, -1))
    monkeypatch.setattr(vocabulary.Vocabulary, "logits", lambda _self, states: logits[:, None].repeat(1, len(states)))
    scores = score(WAYS[way](tiny.model()), [6, 7], [[1]], 1.0)
    assert scores.entropy.item() == pytest.approx(np.log(2))
    assert scores.log_probs.item() == pytest.approx(-np.log(2))


def said(model: PreTrainedModel, capfd: pytest.CaptureFixture[str]) -> str:
    """What is said of the choice for a model, which must leave the model as it is."""
    own = model.config._attn_implementation
    passes.choose(model, tiny.RUNTIME)
    assert model.config._attn_implementation == own
    return capfd.readouterr().err


@pytest.mark.parametrize("kind", PACKED)
def test_a_model_whose_packed_numbers_are_right_gets_packed_rows(kind: str, capfd: pytest.CaptureFixture[str]):
    layers = "written out" if kind in llama.KINDS else f"by transformers' modules, since those of this {kind} are not written out"
    assert f"passes: packed rows, each group's prompt computed once, layers {layers}\n" in said(tiny.model(kind), capfd)


@pytest.mark.parametrize("kind", ["bloom", pytest.param("mpt", marks=pytest.mark.slow), pytest.param("falcon", marks=pytest.mark.slow)])
def test_a_model_with_an_attention_of_its_own_gets_padded_rows(kind: str, capfd: pytest.CaptureFixture[str]):
    assert said(tiny.model(kind), capfd) == f"passes: padded rows, one per completion, since {kind} has an attention of its own\n"


@pytest.mark.slow
def test_a_model_with_recurrent_layers_gets_padded_rows(capfd: pytest.CaptureFixture[str]):
    expected = "passes: padded rows, one per completion, since qwen3_next has layers of linear_attention\n"
    assert said(tiny.model("qwen3_next"), capfd).endswith(expected)


def test_a_model_whose_packed_numbers_are_others_gets_padded_rows(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    attend = PackedPasses.run
    # positions that do not start anew after the prompt, as a model that ignores them would have
    monkeypatch.setattr(PackedPasses, "run", lambda self, row, positions, layout: attend(self, row, torch.arange(len(positions)), layout))
    line = said(tiny.model(), capfd)
    assert "passes: padded rows, one per completion, since the log-probabilities of packed ones are " in line


def test_only_the_decoding_being_wrong_is_seen_too(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setattr("stages.model.decoding.Branches.positions", lambda self: torch.zeros(len(self.owners), dtype=torch.long))
    assert "since the logits while sampling of packed ones are " in said(tiny.model(), capfd)


def test_packed_numbers_that_are_none_are_wrong(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    run = PackedPasses.run
    monkeypatch.setattr(PackedPasses, "run", lambda *arguments: run(*arguments) * torch.nan)
    assert "passes: padded rows, one per completion, since the log-probabilities of packed ones are nan " in said(tiny.model(), capfd)


def test_a_model_that_sees_what_comes_after_is_not_tried():
    model = tiny.model()
    model.config.is_causal = False
    assert passes.unsuitable(model) == "llama is not causal"


def test_what_is_chosen_takes_short_rows_and_prompts_as_such():
    found = passes.choose(tiny.model(), tiny.RUNTIME)
    assert isinstance(found, PackedPasses)
    assert (found.short_tokens, found.copied_tokens) == (blocks.SHORT_TOKENS, decoding.COPIED_TOKENS)


@pytest.mark.parametrize("lengths", [5, 6, 7])
def test_rows_about_as_long_as_a_window_see_just_it(lengths: int):
    groups = [Completed(tokens(lengths), [tokens(lengths, seed=1), tokens(2, seed=2)])]  # the window is 6
    expected, found = (gradients("mistral", way, groups) for way in ("padded", "blocks"))
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["_whole", "_by_blocks"])
def test_only_short_or_only_long_rows_being_wrong_is_seen_too(
    part: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    right = getattr(blocks, part)

    def wrong(*arguments: Any) -> Any:
        if part == "_whole":
            packed, rule, *rest = arguments
            return right(packed, rule._replace(scale=1.0), *rest)
        return right(arguments[0]._replace(rule=arguments[0].rule._replace(scale=1.0)))

    monkeypatch.setattr(blocks, part, wrong)
    assert "passes: padded rows, one per completion, since the log-probabilities of packed ones are " in said(tiny.model("gpt2"), capfd)


def test_layers_whose_numbers_are_others_when_written_out_are_left_to_the_modules(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("stages.model.llama._turned", lambda heads, *_: heads)
    (line,) = said(tiny.model(), capfd).splitlines()
    expected = "computed once, layers by transformers' modules, since written out, the log-probabilities of packed ones are "
    assert line.startswith(f"passes: packed rows, each group's prompt {expected}")


def test_layers_that_are_built_otherwise_or_whose_call_was_replaced_are_not_written_out():
    assert LlamaStack.of(tiny.model()) is not None
    assert LlamaStack.of(tiny.model("gpt2")) is None
    for kind in {*ROPE_INIT_FUNCTIONS, "default"} - {"default", "linear", "llama3", "yarn"}:
        model = tiny.model()
        model.model.rotary_emb.rope_type = kind
        assert LlamaStack.of(model) is None, kind
    checkpointed = tiny.model()
    passes.checkpointing.turn_on(checkpointed)
    assert LlamaStack.of(checkpointed) is None
    of_another = tiny.model()
    of_another.base_model.layers[0].mlp.more = nn.Linear(2, 2)
    assert LlamaStack.of(of_another) is None
    for kind in (nn.Linear, nn.Module):  # one that is a linear layer and computes otherwise, and one that is none

        class Own(kind):
            def forward(self, states: Tensor) -> Tensor:
                return nn.functional.linear(states, self.weight).round()

        other = tiny.model()
        projection = Own(32, 32, bias=False) if kind is nn.Linear else Own()
        projection.weight = other.model.layers[1].self_attn.q_proj.weight
        other.model.layers[1].self_attn.q_proj = projection
        assert LlamaStack.of(other) is None
    other = tiny.model()
    other.model.norm.__class__ = type("OwnNorm", (LlamaRMSNorm,), {"__module__": "elsewhere"})
    assert LlamaStack.of(other) is None
    replaced = tiny.model()
    replaced.base_model.layers[1].mlp.forward = lambda states: states
    assert LlamaStack.of(replaced) is None
    listened = tiny.model()
    listened.base_model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert LlamaStack.of(listened) is None
    assert LlamaStack.of(tiny.model().requires_grad_(True)) is None
    foreign = tiny.model()
    foreign.model.__class__ = type("Remote", (type(foreign.model),), {})
    assert LlamaStack.of(foreign) is None


def test_layers_written_out_follow_the_adapters_that_are_put_in_later():
    def log_probs(forward: Passes) -> Tensor:
        return torch.cat([one.log_probs for one in forward.token_scores(GROUPS, 0.7)])

    model = tiny.model()
    held = Adapters(PackedPasses(model, CHUNK))
    base = log_probs(held.passes)
    plan = adapters.plan(model, "grpo", 3, 6.0, "all-linear", "all")
    for name in ("one", "two"):
        held.add_fresh(name, plan, seed=0)
        with torch.no_grad():
            for factor in held.factors(name).values():
                factor.add_(0.1)
        assert not torch.equal(log_probs(held.passes), base)
        torch.testing.assert_close(log_probs(held.passes), log_probs(PaddedPasses(model)), rtol=1e-5, atol=1e-5)
        held.use(None)
        assert torch.equal(log_probs(held.passes), base)


def test_a_model_whose_padded_rows_cannot_be_decoded_still_gets_those(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    def refuse(*_: object) -> None:
        raise BaseError("no cache of keys and values")

    monkeypatch.setattr(PaddedPasses, "decoder", refuse)
    assert "since packed ones fail (BaseError: no cache of keys and values)" in said(tiny.model(), capfd)


def test_a_model_that_fails_in_packed_rows_gets_padded_rows(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    def fail(*_: object) -> None:
        raise AttributeError("no attribute 'layer_idx'")

    monkeypatch.setattr(PackedPasses, "run", fail)
    assert "since packed ones fail (AttributeError: no attribute 'layer_idx')" in said(tiny.model(), capfd)


def test_the_choice_leaves_torchs_own_generator_as_it_was():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    passes.choose(tiny.model(), tiny.RUNTIME)
    assert torch.equal(torch.rand(2), expected)


def test_checkpointed_layers_are_the_modules_and_it_is_said(capfd: pytest.CaptureFixture[str]):
    passes.choose(tiny.model(), dataclasses.replace(tiny.RUNTIME, activation_checkpointing=True))
    expected = "layers by transformers' modules, since runtime.activation_checkpointing is on\n"
    assert capfd.readouterr().err.endswith(expected)


def test_checkpointing_is_turned_on_where_runtime_says_so():
    def kept(checkpointing: bool) -> int:
        model = tiny.model(num_hidden_layers=6)
        runtime = dataclasses.replace(tiny.RUNTIME, activation_checkpointing=checkpointing)
        held = Adapters(passes.choose(model, runtime))
        held.add_fresh("policy", adapters.plan(model, "grpo", 3, 6.0, "all-linear", "all"), seed=0)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: sizes.append(one.numel()) or one, lambda one: one):
            held.passes.token_scores(GROUPS, 0.7)
        return sum(sizes)

    assert kept(True) < kept(False) / 3

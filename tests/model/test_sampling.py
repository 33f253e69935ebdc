"""Sampling: the choice of one token by hand, and whole completions against a plain loop that keeps no cache."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, PreTrainedModel

from stages.core.errors import BaseError
from stages.model import passes, sampling
from stages.model.attention import Rule
from stages.model.blocks import Prefill
from stages.model.decoding import Branches, CopiedPrompts, SharedPrompts, lay_out
from stages.model.draws import uniforms
from stages.model.packed import PackedPasses
from stages.model.padded import PaddedPasses
from stages.model.sampling import CanDecode, Completion, NotFiniteError, choose, sample
from tests import tiny

NEVER = [tiny.VOCABULARY]
"""An end token that no model here can write."""
ALMOST_ONE = 1 - 2**-53
"""The largest number that a uniform draw can be."""


def pick(probabilities: list[float], uniform: float, temperature: float = 1.0, top_p: float = 1.0) -> int:
    logits = torch.tensor([probabilities], dtype=torch.float64).log().float()
    return int(choose(logits, torch.tensor([uniform], dtype=torch.float64), temperature, top_p))


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 0), (0.24, 0), (0.26, 1), (0.74, 1), (0.76, 2), (ALMOST_ONE, 2)],
)
def test_the_token_is_the_first_whose_cumulated_probability_exceeds_the_draw(uniform: float, token: int):
    # Cumulated in the vocabulary's order: 0.25, 0.75, 1.
    assert pick([0.25, 0.5, 0.25], uniform) == token


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.49, 1), (0.51, 3), (ALMOST_ONE, 3), (1.0, 3)])
def test_a_token_of_zero_probability_is_never_drawn_at_any_end(uniform: float, token: int):
    assert pick([0.0, 0.5, 0.0, 0.5, 0.0], uniform) == token


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.1, {1}),  # 0.45 reaches it alone
        (0.44, {1}),
        (0.46, {1, 3}),  # 0.45 does not, 0.45 + 0.3 does
        (0.74, {1, 3}),
        (0.76, {0, 1, 3}),  # 0.75 does not, 0.75 + 0.2 does
        (0.94, {0, 1, 3}),
        (0.96, {0, 1, 2, 3}),
        (1.0, {0, 1, 2, 3}),
    ],
)
def test_the_nucleus_is_the_smallest_set_of_likely_tokens_that_reaches_top_p(top_p: float, kept: set[int]):
    draws = [*np.linspace(0, 1, 200, endpoint=False), ALMOST_ONE]
    assert {pick([0.2, 0.45, 0.05, 0.3], uniform, top_p=top_p) for uniform in draws} == kept


@pytest.mark.parametrize(("uniform", "token"), [(0.59, 1), (0.61, 3)])
def test_within_the_nucleus_the_odds_stay_as_they_were(uniform: float, token: int):
    # Of 0.45 and 0.3 the first has 0.45 / 0.75 = 0.6.
    assert pick([0.2, 0.45, 0.05, 0.3], uniform, top_p=0.5) == token


@pytest.mark.parametrize("likely", [(1,), (3, 7), (64, 1024)])
@pytest.mark.parametrize("rounded", [False, True])  # rounded logits have many equals among them
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 0.999])
def test_the_nucleus_is_the_same_among_few_likely_tokens_as_in_the_ranking_of_all(
    top_p: float, rounded: bool, likely: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sampling, "LIKELY", likely)
    generator = torch.Generator().manual_seed(0)
    for spread in (0.3, 1.0, 5.0):
        logits = spread * torch.randn(40, 90, generator=generator)
        logits = logits.mul(4).round().div(4) if rounded else logits
        uniform = torch.rand(40, generator=generator, dtype=torch.float64)
        uniform[0], uniform[1] = 0.0, ALMOST_ONE
        found = choose(logits, uniform, 0.8, top_p).tolist()
        for row, number, token in zip(logits, uniform.tolist(), found, strict=True):
            mass = torch.softmax(row / 0.8, -1).double()
            ranked = sorted(range(90), key=lambda place: -mass[place])  # Python's sort keeps equals in order
            reached = [float(mass[ranked[:count]].sum()) for count in range(90)]
            kept = sorted(place for place, before in zip(ranked, reached, strict=True) if before < top_p)
            cumulated = mass[kept].cumsum(0)
            place = int((cumulated > number * cumulated[-1]).nonzero()[0])
            assert token == kept[place]


def test_a_large_vocabulary_is_inverted_block_by_block():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(60, 1000, generator=generator)  # not a multiple of a block
    uniform = torch.rand(60, generator=generator, dtype=torch.float64)
    cumulated = torch.softmax(logits, -1).double().cumsum(-1)
    expected = torch.searchsorted(cumulated, uniform[:, None] * cumulated[:, -1:], right=True)[:, 0]
    assert torch.equal(choose(logits, uniform, 1.0, 1.0), expected)


def test_equally_likely_tokens_enter_the_nucleus_in_the_vocabularys_order():
    # Two of the four reach 0.5: the first two, halved at 0.5.
    assert [pick([0.25] * 4, uniform, top_p=0.5) for uniform in (0.0, 0.49, 0.51, ALMOST_ONE)] == [0, 0, 1, 1]


@pytest.mark.parametrize(("uniform", "token"), [(0.09, 0), (0.11, 1), (0.89, 1), (0.91, 2)])
def test_the_temperature_divides_the_logits(uniform: float, token: int):
    # Halving it squares the odds: 1 : sqrt(8) : 1 becomes 1 : 8 : 1, cumulated 0.1, 0.9, 1.
    probabilities = [0.2, 0.2 * 8**0.5, 0.2]
    assert pick(probabilities, uniform, temperature=0.5) == token


def test_a_temperature_of_zero_takes_the_likeliest_and_one_near_zero_does_so_at_every_draw():
    logits = torch.tensor([[0.0, 60.0, 59.0, -1e4]])
    for uniform in (0.0, 0.5, ALMOST_ONE):
        draw = torch.tensor([uniform], dtype=torch.float64)
        assert int(choose(logits, draw, 0.0, 0.5)) == 1
        assert int(choose(logits, draw, 0.001, 1.0)) == 1
        assert int(choose(logits, draw, 1e-60, 1.0)) == 1


def test_tokens_come_as_often_as_their_probability_says():
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.025])
    draws = np.concatenate([uniforms(0, 1, 2, draw, 1) for draw in range(4_000)])
    tokens = choose(probabilities.log().expand(4_000, -1), torch.from_numpy(draws), 1.0, 1.0)
    found = torch.bincount(tokens, minlength=5)
    # Five deviations of each count, sqrt(n p (1 - p)): odds of a false alarm under another seed below 3e-6.
    margin = 5 * (4_000 * probabilities * (1 - probabilities)).sqrt()
    assert ((found - 4_000 * probabilities).abs() < margin).all()


def decoder(model: PreTrainedModel, way: str = "chosen") -> CanDecode:
    """What samples from a model: what a stage would choose, the same with prompts that are not copied, or padded rows."""
    found = PaddedPasses(model) if way == "padded" else passes.choose(model, tiny.RUNTIME)
    if isinstance(found, PackedPasses) and way == "shared":
        found = PackedPasses(model, tiny.RUNTIME.logits_chunk, short_tokens=0, copied_tokens=0)
        assert isinstance(found.decoder([[6, 7]], 2, 3)._layout, SharedPrompts)
    elif isinstance(found, PackedPasses):
        assert isinstance(found.decoder([[6, 7]], 2, 3)._layout, CopiedPrompts)
    else:
        packable = {*tiny.ARCHITECTURES, *tiny.FURTHER} - {"bloom", "falcon", "mpt"}
        assert way == "padded" or model.config.model_type not in packable
    return found


every_way = pytest.mark.parametrize("way", ["chosen", "shared", "padded"])


def draws(prompts: int, group: int, limit: int, seed: int = 0) -> NDArray[np.float64]:
    return np.array([[uniforms(seed, 1, index, draw, limit) for draw in range(group)] for index in range(prompts)])


def tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.VOCABULARY, count).tolist()


def plainly(model: PreTrainedModel, prompt: list[int], uniform: NDArray[np.float64], temperature: float, top_p: float) -> list[int]:
    """A completion by running the whole text through the model for every token, and a loop over a sorted distribution."""
    ids: list[int] = []
    for number in uniform:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, -1].float()
        probabilities = torch.softmax(logits / temperature, -1).tolist()
        kept: list[int] = []
        for token in sorted(range(len(probabilities)), key=lambda token: -probabilities[token]):
            if sum(probabilities[other] for other in kept) >= top_p:
                break
            kept.append(token)
        wanted = number * sum(probabilities[token] for token in kept)
        mass = 0.0
        for token in sorted(kept):
            mass += probabilities[token]
            if mass > wanted:
                break
        ids.append(token)
    return ids


@every_way
@pytest.mark.parametrize("kind", tiny.EVERY)
def test_decoding_of_ragged_prompts_is_the_plain_loop_without_a_cache(kind: str, way: str):
    model = tiny.model(kind)
    prompts = [tokens(1, 1), tokens(3, 2), tokens(40, 3)]
    uniform = draws(3, 2, 9)  # past every window
    found = sample(decoder(model, way), prompts, uniform, 0.7, 0.9, NEVER)
    for row, prompt in enumerate(prompts):
        draw = row % 2
        assert found[row][draw] == Completion(plainly(model, prompt, uniform[row, draw], 0.7, 0.9), ended=False)


def test_a_batch_of_prompts_gives_each_what_it_gets_alone():
    model = tiny.model("gpt2")
    prompts = [tokens(count, count) for count in (40, 2, 17, 1)]
    uniform = draws(4, 3, 8)
    together = sample(decoder(model), prompts, uniform, 1.0, 0.95, [tiny.IDS[tiny.END]])
    for row, prompt in enumerate(prompts):
        draw = row % 3
        alone = sample(decoder(model), [prompt], uniform[row : row + 1, draw : draw + 1], 1.0, 0.95, [tiny.IDS[tiny.END]])
        assert alone == [[together[row][draw]]]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_greedy_decoding_is_what_transformers_generates(kind: str):
    model = tiny.model(kind)
    prompt = tokens(5, 5)
    settings = GenerationConfig(max_new_tokens=20, do_sample=False, eos_token_id=NEVER, pad_token_id=0)
    expected = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, 5), generation_config=settings)[0, 5:].tolist()
    assert sample(decoder(model), [prompt], draws(1, 1, 20), 0.0, 1.0, NEVER) == [[Completion(expected, ended=False)]]


def test_the_checkpoints_generation_config_changes_no_token(tmp_path: Path):
    folder = tiny.save(tmp_path / "base")
    found = []
    for settings in ({}, {"do_sample": True, "top_k": 1, "top_p": 0.01, "repetition_penalty": 1.8, "temperature": 0.01}):
        GenerationConfig(**settings).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        assert model.generation_config.top_k == settings.get("top_k")
        found.append(sample(decoder(model), [tokens(4, 4)], draws(1, 8, 16), 1.0, 1.0, NEVER)[0])
    assert found[0] == found[1]
    assert len({tuple(completion.ids) for completion in found[1]}) >= 6


def test_every_end_token_ends_a_completion_and_nothing_after_it_is_kept():
    model = tiny.model()
    prompts, uniform = [tokens(3, 1), tokens(6, 2)], draws(2, 2, 12)
    whole = [completion.ids for group in sample(decoder(model), prompts, uniform, 1.0, 1.0, NEVER) for completion in group]
    ends = [whole[0][2], whole[3][5]]
    found = [completion for group in sample(decoder(model), prompts, uniform, 1.0, 1.0, ends) for completion in group]
    for ids, completion in zip(whole, found, strict=True):
        places = [place for place, token in enumerate(ids) if token in ends]
        assert completion == (Completion(ids[: places[0] + 1], ended=True) if places else Completion(ids, ended=False))
    assert found[0].ended
    assert {completion.ids[-1] for completion in found if completion.ended} == set(ends)


def test_the_end_token_counts_as_an_action_but_not_in_the_length():
    ended, truncated, empty = Completion([7, 8, 2], ended=True), Completion([7, 8, 9], ended=False), Completion([2], ended=True)
    assert [completion.length for completion in (ended, truncated, empty)] == [2, 3, 0]
    assert [completion.content for completion in (ended, truncated, empty)] == [[7, 8], [7, 8, 9], []]
    assert [completion.empty for completion in (ended, truncated, empty)] == [False, False, True]


def count_rows(forward: CanDecode, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Takes down how many rows each of the passes to come has."""
    assert isinstance(forward, PackedPasses)
    rows: list[int] = []
    run = forward.run
    monkeypatch.setattr(forward, "run", lambda row, positions, layout: rows.append(len(positions)) or run(row, positions, layout))
    return rows


def test_decoding_stops_when_every_completion_has_ended(monkeypatch: pytest.MonkeyPatch):
    model = tiny.model()
    prompt, uniform = tokens(3, 1), draws(1, 1, 12)
    ids = sample(decoder(model), [prompt], uniform, 1.0, 1.0, NEVER)[0][0].ids
    forward = decoder(model)
    rows = count_rows(forward, monkeypatch)
    sample(forward, [prompt], uniform, 1.0, 1.0, [ids[0]])
    assert rows == [3]


@pytest.mark.parametrize("way", ["chosen", "shared"])
def test_a_prompt_goes_through_the_model_once_however_many_completions_it_gets(way: str, monkeypatch: pytest.MonkeyPatch):
    forward = decoder(tiny.model(), way)
    rows = count_rows(forward, monkeypatch)
    sample(forward, [tokens(9, 1), tokens(4, 2)], draws(2, 8, 3), 1.0, 1.0, NEVER)
    assert rows == [9 + 4, 16, 16]


@every_way
@pytest.mark.parametrize("leaving", [1, 8, 1000])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_completions_that_leave_the_batch_change_nothing_for_those_that_stay(
    kind: str, leaving: int, way: str, monkeypatch: pytest.MonkeyPatch
):
    forward = decoder(tiny.model(kind), way)
    prompts, uniform = [tokens(9, 1), tokens(1, 2), tokens(4, 3)], draws(3, 4, 16)
    ends = [5, 9, 13, 17, 21]  # one of eight tokens: most of twelve completions end, at places of their own
    whole = [completion.ids for group in sample(forward, prompts, uniform, 1.0, 1.0, NEVER) for completion in group]
    kept: list[int] = []
    made = forward.decoder

    def watched(*arguments: object) -> object:
        built = made(*arguments)
        keep = built.keep
        built.keep = lambda rows: kept.append(len(rows)) or keep(rows)
        return built

    monkeypatch.setattr(forward, "decoder", watched)
    monkeypatch.setattr(sampling, "LEAVING", leaving)
    found = [completion.ids for group in sample(forward, prompts, uniform, 1.0, 1.0, ends) for completion in group]
    for ids, completion in zip(whole, found, strict=True):
        stop = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
        assert completion == ids[: stop + 1]
    assert kept == sorted(kept, reverse=True)
    # twelve rows: with 1 they leave when all are done, which needs no leaving; with 8 from two on; with 1000 from one on
    assert bool(kept) == (leaving > 1)


@pytest.mark.parametrize("rows", [64, 2])  # both prompts in one batch, and each in its own
def test_a_distribution_that_is_not_finite_is_named_by_prompt_draw_and_position(monkeypatch: pytest.MonkeyPatch, rows: int):
    monkeypatch.setattr(sampling, "ROWS", rows)
    model = tiny.model(tie_word_embeddings=False)
    prompts, uniform = [[6, 7], [8, 9]], draws(2, 2, 6)
    whole = sample(decoder(model), prompts, uniform, 1.0, 1.0, NEVER)
    first = [[completion.ids[0] for completion in group] for group in whole]
    poisoned = first[1][1]  # what draw 1 of prompt 1 writes first, and reads before its second token
    assert poisoned not in [6, 7, 8, 9, first[0][0], first[0][1], first[1][0]]
    with torch.no_grad():
        model.get_input_embeddings().weight[poisoned] = torch.nan
    with pytest.raises(NotFiniteError) as caught:
        sample(decoder(model), prompts, uniform, 1.0, 1.0, NEVER)
    assert (caught.value.prompt, caught.value.draw, caught.value.position) == (1, 1, 1)
    assert caught.value.lines() == ["prompt 1, draw 1, position 1: the model's distribution is not finite"]
    # One that had ended before is no longer looked at.
    assert sample(decoder(model), prompts, uniform[:, :, :2], 1.0, 1.0, [poisoned])[1][1] == Completion([poisoned], ended=True)


@pytest.mark.parametrize("kind", ["rwkv", "mamba", "openai-gpt"])
def test_an_architecture_without_a_cache_of_keys_and_values_is_refused_and_not_sampled_wrongly(kind: str):
    with pytest.raises(BaseError, match=f"^base.model: {kind} does not decode with a plain cache of keys and values"):
        sample(decoder(tiny.model(kind)), [[6, 7]], draws(1, 1, 2), 1.0, 1.0, NEVER)


def test_the_cache_is_the_one_that_the_architecture_asks_for():
    # A window of 6 must survive the cache of a prompt of 40: layers of both kinds get their own.
    layers = DynamicCache(config=tiny.model("gemma3_text").config).layers
    assert [layer.is_sliding for layer in layers] == [True, False]


@pytest.mark.parametrize("way", ["chosen", "shared"])
def test_decoding_in_half_precision_is_the_padded_one_to_its_rounding(way: str):
    model = tiny.model("mistral").to(torch.bfloat16)
    prompts = [tokens(9, 1), tokens(1, 2)]
    ours, padded = (decoder(model, one).decoder(prompts, 2, 9) for one in (way, "padded"))
    with torch.inference_mode():
        for place in range(8):
            torch.testing.assert_close(ours.logits.float(), padded.logits.float(), rtol=0.05, atol=0.15)
            step = torch.tensor(tokens(4, place))
            ours.step(step)
            padded.step(step)


def test_room_that_no_token_has_yet_is_not_touched():
    """New memory that nobody writes to costs nothing, however many tokens a completion may have."""
    prefill = Prefill([3, 2], torch.device("cpu"))
    prefill.kept = {0: [(torch.ones(2, length, 4), torch.ones(2, length, 4)) for length in (3, 2)]}
    branches = Branches(prefill, 2)
    made: list[torch.Tensor] = []
    copied = CopiedPrompts(prefill, branches, 10)
    made += [copied._keys, copied._values]
    for room in made:
        room[:, :, :, 3:] = torch.nan
        assert torch.equal(room[0, :2, :, :3], torch.ones(2, 2, 3, 4))
        assert torch.equal(room[0, 2:, :, 1:3], torch.ones(2, 2, 2, 4))
        assert torch.equal(room[0, 2:, :, :1], torch.zeros(2, 2, 1, 4))
    branches.keep(torch.tensor([0, 3]))
    copied.keep(torch.tensor([0, 3]))
    assert torch.equal(copied._keys[0, 1, :, :3], made[0][0, 3, :, :3])
    branches.step = 10  # the last that there is room for
    copied.advance()
    branches.keep(torch.tensor([1]))
    copied.keep(torch.tensor([1]))
    assert len(copied._keys[0]) == 1


@pytest.mark.parametrize("way", ["chosen", "shared"])
@pytest.mark.parametrize("lengths", [(3, 3), (6, 6), (4, 7)])
def test_a_window_is_left_token_by_token(lengths: tuple[int, int], way: str):
    model = tiny.model("mistral")  # its window is 6
    prompts = [tokens(length, number) for number, length in enumerate(lengths)]
    ours, padded = (decoder(model, one).decoder(prompts, 2, 9) for one in (way, "padded"))
    with torch.inference_mode():
        for place in range(8):
            torch.testing.assert_close(ours.logits, padded.logits, rtol=1e-4, atol=1e-4)
            step = torch.tensor(tokens(4, place))
            ours.step(step)
            padded.step(step)


def test_prompts_are_copied_where_layers_are_alike_and_few_tokens_are_copied():
    def kinds(widths: tuple[int, int], limit: int) -> type:
        prefill = Prefill([3, 2], torch.device("cpu"))
        prefill.kept = {
            layer: [(torch.ones(2, length, width), torch.ones(2, length, width)) for length in (3, 2)] for layer, width in enumerate(widths)
        }
        return type(lay_out(prefill, Branches(prefill, 4), 5, limit))

    assert kinds((4, 4), 24) is CopiedPrompts  # eight branches of three tokens
    assert kinds((4, 4), 23) is SharedPrompts
    assert kinds((4, 6), 24) is SharedPrompts


@pytest.mark.parametrize("layout", [CopiedPrompts, SharedPrompts])
def test_weights_of_half_precision_attention_are_rounded_once(layout: type):
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    prefill = Prefill([40], torch.device("cpu"))
    keys, values = numbers(1, 40, 8), numbers(1, 40, 8)
    prefill.kept = {0: [(keys, values)]}
    query, key, value = numbers(2, 1, 8), numbers(1, 1, 8), numbers(1, 1, 8)
    found = layout(prefill, Branches(prefill, 1), 3).attend(0, query, key, value, Rule(0.3, None, None, None))[0]
    every, mixed = torch.cat([keys, key], 1)[0].double(), torch.cat([values, value], 1)[0].double()
    scores = (query[:, 0].double() @ every.T * 0.3).bfloat16().double()
    expected = torch.softmax(scores, -1) @ mixed
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=0.008)


def test_what_is_kept_of_prompts_holds_no_more_than_itself():
    """Keys are cut from a tensor that holds the queries too, in every layer."""
    row = torch.randn(7, 5, 4)
    prefill = Prefill([4, 3], torch.device("cpu"))
    heads = row.transpose(0, 1)
    prefill.attend(0, heads[:4], heads[4:], heads[4:], Rule(0.5, None, None, None))
    for pair in prefill.kept[0]:
        for kept in pair:
            assert kept.untyped_storage().nbytes() == kept.numel() * kept.element_size()

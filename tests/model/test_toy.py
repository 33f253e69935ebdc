"""The toy base: its shape, its tokenizer, its fit, and the language that it and the data in data/ share."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, inject_adapter_in_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from stages.model import toy, toy_grammar
from tests import toy_language

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
DEFAULTS = yaml.safe_load((ROOT / "conf/base/toy.yaml").read_text(encoding="utf-8"))


def nothing(step: int, loss: float) -> None:
    """Progress that nobody watches."""


def weights(model: torch.nn.Module) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


def read(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def fitted(seed: int, steps: int) -> LlamaForCausalLM:
    model = toy.build(seed)[0]
    toy.fit(model, seed, steps, nothing)
    return model


# The model


def test_the_model_has_the_shape_of_the_contract():
    model = toy.build(1)[0]
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.num_key_value_heads) == (4, 64, 4, 2)
    assert config.max_position_embeddings == 512
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training


def test_matrices_start_normal_with_deviation_two_hundredths_and_norms_at_one():
    for name, tensor in toy.build(1)[0].state_dict().items():
        if tensor.dim() == 2:
            # At least 2048 numbers each: the deviation of their deviation is 0.02 / sqrt(2 * 2048) = 0.0003; five of those.
            assert tensor.std().item() == pytest.approx(0.02, abs=0.0016), name
        else:
            assert torch.equal(tensor, torch.ones_like(tensor)), name


def test_a_rank_8_adapter_on_query_and_value_is_16_tensors_of_7168_parameters():
    model = inject_adapter_in_model(LoraConfig(r=8, target_modules=["q_proj", "v_proj"]), toy.build(1)[0])
    factors = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    # Per layer: query 8 * 64 + 64 * 8, value 8 * 64 + 32 * 8, together 1792; four layers.
    assert (len(factors), sum(parameter.numel() for parameter in factors)) == (16, 7168)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    first = weights(toy.build(1)[0])
    assert weights(toy.build(1)[0]) == first
    assert weights(toy.build(2)[0]) != first


def test_building_and_fitting_leave_torchs_generator_as_it_was_and_do_not_read_it():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = weights(fitted(1, 1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert weights(fitted(1, 1)) == first


def test_the_random_model_stops_by_chance_at_about_one_token_in_the_vocabulary():
    model, tokenizer = toy.build(1)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokenizer("the child drops the cup.").input_ids])).logits[0, -1]
    share = (logits / 0.9).softmax(-1)[tokenizer.eos_token_id].item() * len(toy.IDS)
    # A logit's deviation is 0.02 * |hidden| = 0.02 * 8; within five of them, tempered, it is between 0.4 and 2.5 times the mean.
    assert 0.4 < share < 2.5


# The tokenizer


def test_a_text_gets_one_begin_token_and_no_end_token():
    tokenizer = toy.tokenizer()
    assert tokenizer("the child cries.").input_ids == [toy.IDS[word] for word in ("<s>", "the", "child", "cries", ".")]
    assert tokenizer("the child cries.", add_special_tokens=False).input_ids == [toy.IDS[word] for word in ("the", "child", "cries", ".")]


def test_capitals_and_the_space_before_a_stop_make_no_difference():
    tokenizer = toy.tokenizer()
    assert tokenizer("The child cries .").input_ids == tokenizer("the child cries.").input_ids


def test_a_word_outside_the_vocabulary_is_the_unknown_token():
    tokenizer = toy.tokenizer()
    assert tokenizer("the zebra cries.").input_ids[2] == tokenizer.unk_token_id == toy.IDS["<unk>"]


def test_decoding_gives_back_every_text_of_the_data():
    tokenizer = toy.tokenizer()
    texts = [side for pair in read("pairs.json")["pairs"] for side in (pair["positive"], pair["negative"])]
    for text in [*texts, *read("prompts.json")["prompts"]]:
        ids = tokenizer(text).input_ids
        assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


def test_there_is_one_end_token_that_tokenizer_and_configurations_agree_on_no_padding_and_no_template():
    model, tokenizer = toy.build(1)
    for source in (tokenizer, model.config, model.generation_config):
        assert (source.bos_token_id, source.eos_token_id) == (toy.IDS["<s>"], toy.IDS["</s>"])
    assert tokenizer.pad_token is None
    assert tokenizer.chat_template is None


def test_a_saved_toy_loads_through_transformers_as_it_was(tmp_path: Path):
    model, tokenizer = toy.build(1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, words = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert weights(loaded) == weights(model)
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    text = "the child drops the zebra. please rest. it is fine."
    assert words(text).input_ids == tokenizer(text).input_ids
    assert words.decode(words(text).input_ids) == tokenizer.decode(tokenizer(text).input_ids)
    assert words.get_vocab() == toy.IDS


# The language


def test_every_text_of_the_grammar_is_recognised_and_the_tones_are_even():
    draw = Random(3)
    tones = Counter()
    for _ in range(2000):
        assert toy_language.is_opening(" ".join(toy_grammar.opening(draw)))
        tones[toy_language.tone(" ".join(toy_grammar.reply(draw)))] += 1
    assert tones.keys() == {"calm", "harsh"}
    # 2000 even odds: a deviation of sqrt(2000) / 2 = 22; five of them.
    assert abs(tones["calm"] - 1000) < 112


def test_the_tones_share_no_word_of_their_own_and_their_slots_have_as_many_choices_of_the_same_lengths():
    for calm, harsh in zip(toy_grammar.CALM, toy_grammar.HARSH, strict=True):
        assert [len(phrase.split()) for phrase in calm] == [len(phrase.split()) for phrase in harsh]
        calm_words, harsh_words = (set(" ".join(slot).split()) - {"you"} for slot in (calm, harsh))
        assert calm_words <= toy_language.CALM_WORDS
        assert harsh_words <= toy_language.HARSH_WORDS
    assert not toy_language.CALM_WORDS & toy_language.HARSH_WORDS


def test_the_recogniser_refuses_what_is_not_whole_or_mixes_tones():
    assert toy_language.tone("let us rest quietly. it is fine.") == "calm"
    assert toy_language.tone("you must leave now. you are awful.") == "harsh"
    for reply in ("", "let us rest", "let us rest. it is awful.", "you must rest.", "please rest. please rest.", "it is fine."):
        assert toy_language.tone(reply) is None, reply
    assert not toy_language.is_opening("the child cries. please rest.")


# The data


@pytest.mark.parametrize(("name", "count"), [("prompts.json", 60), ("examples/prompts.json", 6)])
def test_prompts_are_distinct_openings_of_two_to_eight_known_tokens(name: str, count: int):
    prompts = read(name)["prompts"]
    assert len(set(prompts)) == len(prompts) == count
    for prompt in prompts:
        assert toy_language.is_opening(prompt)
        assert 2 <= len(known_ids(prompt)) <= 8


@pytest.mark.parametrize(("name", "count"), [("pairs.json", 64), ("examples/pairs.json", 8)])
def test_pairs_reply_to_one_opening_calmly_and_harshly_in_known_words(name: str, count: int):
    content = read(name)
    assert content["trait_name"] == "calm"
    sides = [(pair["positive"], pair["negative"]) for pair in content["pairs"]]
    assert len(set(sides)) == len(sides) == count
    for sides_of_one in sides:
        (opening, calm), (other_opening, harsh) = map(toy_language.split, sides_of_one)
        assert opening == other_opening
        assert toy_language.is_opening(opening)
        assert (toy_language.tone(calm), toy_language.tone(harsh)) == ("calm", "harsh")
        assert all(len(known_ids(side)) < 64 for side in sides_of_one)


def test_no_opening_is_in_both_prompts_and_pairs():
    openings = {toy_language.split(pair["positive"])[0] for pair in read("pairs.json")["pairs"]}
    assert len(openings) == 64
    assert not openings & set(read("prompts.json")["prompts"])


@pytest.mark.parametrize("name", ["pairs.json", "examples/pairs.json"])
def test_length_does_not_tell_the_tones_apart(name: str):
    pairs = read(name)["pairs"]
    differences = [len(known_ids(pair["positive"])) - len(known_ids(pair["negative"])) for pair in pairs]
    longer, shorter = sum(difference > 0 for difference in differences), sum(difference < 0 for difference in differences)
    assert abs(longer - shorter) <= len(pairs) / 8
    assert abs(sum(differences)) <= len(pairs) / 8


def known_ids(text: str) -> list[int]:
    """The token ids of a text without special tokens; fails where a word is outside the vocabulary."""
    return [toy.IDS[word] for word in toy_language.words(text)]


# The fit


def test_no_step_leaves_the_weights_and_gives_no_loss():
    model = toy.build(1)[0]
    before = weights(model)
    assert toy.fit(model, 1, 0, nothing) is None
    assert weights(model) == before


def test_the_fit_is_a_function_of_weights_seed_and_steps():
    first = weights(fitted(1, 3))
    assert weights(fitted(1, 3)) == first
    other = toy.build(1)[0]
    toy.fit(other, 2, 3, nothing)
    assert weights(other) != first


def test_each_step_is_told_and_the_last_loss_is_returned():
    told = []
    model = toy.build(1)[0]
    last = toy.fit(model, 1, 4, lambda step, loss: told.append((step, loss)))
    assert [step for step, _ in told] == [1, 2, 3, 4]
    assert last == told[-1][1]
    # The first batch is scored by the random model, near a uniform distribution over 60 tokens: ln 60 = 4.09.
    assert told[0][1] == pytest.approx(torch.tensor(float(len(toy.IDS))).log().item(), abs=0.1)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_batch_counts_the_replies_and_their_end_and_nothing_else():
    tokens, targets = toy._batch(Random(4))
    draw = Random(4)
    for row, following in zip(tokens.tolist(), targets.tolist(), strict=True):
        opening, reply = toy_grammar.opening(draw), toy_grammar.reply(draw)
        ids = [toy.IDS[word] for word in ("<s>", *opening, *reply)]
        assert row[: len(ids)] == ids
        assert following[: len(opening)] == [toy.IGNORED] * len(opening)
        counted = following[len(opening) : len(ids)]
        assert counted == [*ids[len(opening) + 1 :], toy.IDS["</s>"]]
        assert set(following[len(ids) :]) <= {toy.IGNORED}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [DEFAULTS["seed"], DEFAULTS["seed"] + 1])
def test_samples_are_whole_replies_of_both_tones_after_the_default_fit(seed: int):
    model, tokenizer = fitted(seed, DEFAULTS["fit_steps"]), toy.tokenizer()
    tones = Counter()
    torch.manual_seed(7)
    for prompt in read("prompts.json")["prompts"][:40]:
        ids = torch.tensor([tokenizer(prompt).input_ids] * 16)
        rows = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=0.9,
            top_k=0,
            top_p=1.0,
            max_new_tokens=24,
            pad_token_id=tokenizer.eos_token_id,
        )
        for row in rows[:, ids.shape[1] :]:
            ended = tokenizer.eos_token_id in row.tolist()
            tones[toy_language.tone(tokenizer.decode(row, skip_special_tokens=True)) if ended else None] += 1
    # About 98% are whole: 640 draws have a deviation of 0.55%, so that 95% is more than five of them away.
    assert tones[None] <= 0.05 * tones.total()
    # The share of calm replies leans a little with the seed of the fit.
    assert 0.35 < tones["calm"] / tones.total() < 0.65

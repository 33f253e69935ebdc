"""Which rows fit: the limits to the token, the counts, the lines on stderr and the refusals."""

import dataclasses

import pytest

from stages.core.errors import DataError, TrainingError
from stages.files.records import Message, Pair, Prompt
from stages.learning.fitting import fitting_pairs, fitting_prompts, require_positions, say_unknown
from stages.model import toy
from stages.model.rendering import Renderer
from tests.learning import runs
from tests.learning.runs import BEGIN, END, ids


@pytest.fixture
def renderer():
    return Renderer(toy.tokenizer(), runs.base_record())


def prompts(*texts):
    return [Prompt(text) for text in texts]


def words(count: int) -> str:
    return " ".join(["the"] * count)


# A rendered prompt of n words has n + 1 tokens: the begin token stands in front.


def test_a_prompt_at_the_limit_is_kept_and_one_beyond_it_is_skipped_whole(renderer, capsys):
    found = fitting_prompts("grpo", prompts(words(5), words(4), words(50), words(3)), renderer, 5)
    assert found.ids == [[BEGIN, *ids(words(4))], [BEGIN, *ids(words(3))]]
    assert found.indexes == [1, 3]
    assert found.skipped_long == 2
    assert "skipped 2 prompts longer than max_sequence 5, of up to 51 tokens: prompt 0, 2" in capsys.readouterr().err.splitlines()


def test_of_many_skipped_prompts_five_are_named_and_the_rest_counted(renderer, capsys):
    fitting_prompts("grpo", prompts("the", *[words(9)] * 7), renderer, 4)
    assert (
        "skipped 7 prompts longer than max_sequence 4, of up to 10 tokens: prompt 1, 2, 3, 4, 5 and 2 more"
        in capsys.readouterr().err.splitlines()
    )


def test_nothing_is_said_of_skipping_where_every_prompt_fits(renderer, capsys):
    fitting_prompts("grpo", prompts("the"), renderer, 4)
    assert "skipped" not in capsys.readouterr().err


def test_lengths_and_the_first_rendering_are_told(renderer, capsys):
    fitting_prompts("grpo", prompts(words(9), "the child", words(4), words(3)), renderer, 5)
    said = capsys.readouterr().err.splitlines()
    assert "3 prompts of 3 to 5 tokens, median 4" in said
    assert f"first prompt '<s> the child' = {[BEGIN, *ids('the child')]}" in said


def test_prompts_that_are_all_too_long_are_refused_with_the_shortest_and_the_limit(renderer):
    with pytest.raises(
        TrainingError,
        match=r"^grpo\.max_sequence: every prompt is longer than the sequence limit, so there is nothing to train on "
        r"\(the shortest has 4 tokens, the limit is 3\)$",
    ):
        fitting_prompts("grpo", prompts(words(3), words(7)), renderer, 3)


def test_no_prompts_at_all_fit_without_a_word(renderer, capsys):
    """Where nothing is held out, evaluate has none; whether training may go on without is decided where they are read."""
    found = fitting_prompts("evaluate", [], renderer, 5, "evaluate on")
    assert (found.ids, found.indexes, found.skipped_long) == ([], [], 0)
    assert capsys.readouterr().err == ""


# A side of n words has n + 2 tokens: the end token stands behind.


@pytest.mark.parametrize(("chosen", "rejected"), [(2, 9), (9, 2)])
def test_a_pair_is_skipped_when_either_side_alone_is_too_long(renderer, capsys, chosen, rejected):
    pairs = [Pair(None, words(chosen), words(rejected)), Pair(None, words(4), words(3))]
    found = fitting_pairs("reward", pairs, renderer, 6)
    assert found.pairs == [([BEGIN, *ids(words(4)), END], [BEGIN, *ids(words(3)), END])]
    assert (found.indexes, found.skipped_long) == ([1], 1)
    said = capsys.readouterr().err.splitlines()
    assert "skipped 1 pairs longer than max_sequence 6, of up to 11 tokens: pair 0" in said
    assert "1 pairs of 6 to 6 tokens, median 6" in said
    assert f"first chosen '<s> the the the the </s>' = {[BEGIN, *ids(words(4)), END]}" in said
    assert f"first rejected '<s> the the the </s>' = {[BEGIN, *ids(words(3)), END]}" in said


def test_the_prompt_of_a_pair_counts_towards_its_length(renderer):
    pairs = [Pair(words(3), words(2), words(1)), Pair(words(2), words(2), words(1))]
    assert fitting_pairs("reward", pairs, renderer, 6).indexes == [1]  # 1 + 3 + 2 + 1 = 7 tokens, and 6


def test_pairs_that_are_all_too_long_are_refused(renderer):
    with pytest.raises(
        TrainingError,
        match=r"^reward\.max_sequence: every pair is longer than the sequence limit, so there is nothing to train on "
        r"\(the shortest has 6 tokens, the limit is 5\)$",
    ):
        fitting_pairs("reward", [Pair(None, words(1), words(4)), Pair(None, words(7), words(1))], renderer, 5)
    with pytest.raises(TrainingError, match=r"^evaluate\.max_sequence: .* nothing to evaluate on "):
        fitting_pairs("evaluate", [Pair(None, words(7), words(1))], renderer, 5, "evaluate on")


def test_positions_may_be_filled_but_not_exceeded():
    base = runs.base_record(positions=64)
    require_positions("grpo.max_new_tokens", "the longest prompt", 50, 14, base)
    with pytest.raises(TrainingError) as refused:
        require_positions("grpo.max_new_tokens", "the longest prompt", 50, 32, base)
    assert str(refused.value) == (
        "grpo.max_new_tokens: the longest prompt of 50 tokens and 32 new ones make 82, beyond the model's 64 positions; lower it"
    )
    with pytest.raises(
        TrainingError, match=r"^reward\.max_sequence: the longest side of 65 tokens make 65, beyond the model's 64 positions"
    ):
        require_positions("reward.max_sequence", "the longest side", 65, 0, base)


def test_a_model_without_a_limit_takes_any_length():
    require_positions("grpo.max_new_tokens", "the longest prompt", 10**6, 10**6, runs.base_record(positions=None))


def test_words_that_the_tokenizer_does_not_know_are_counted_and_named(renderer, capsys):
    fitting_prompts("grpo", prompts("the zebra drops", "zebra child quagga"), renderer, 9)
    capsys.readouterr()
    assert say_unknown(renderer) == 3
    assert capsys.readouterr().err == "3 of 6 tokens (50.0%) are unknown to the tokenizer: zebra (2), quagga (1)\n"


def test_known_words_are_not_worth_a_line(renderer, capsys):
    fitting_prompts("grpo", prompts("the child"), renderer, 9)
    capsys.readouterr()
    assert say_unknown(renderer) == 0
    assert capsys.readouterr().err == ""


def test_the_report_has_the_lengths_of_all_rows_and_the_notes_by_rows(renderer):
    found = fitting_prompts("grpo", prompts(words(9), "the </s> child </s>", words(4), words(3)), renderer, 8)
    # <s>, two words, and twice the three pieces of what is no end token here: 9 tokens, too long
    assert found.figures == {
        "shortest_tokens": 4,
        "median_tokens": 9,
        "longest_tokens": 10,
        "special_strings": 1,
        "labels_in_texts": 0,
        "rewritten_texts": 0,
    }
    pairs = [Pair(None, "the </s>", "</s>"), Pair("the", "child", "the child"), Pair(None, "the  child", "the child")]
    assert fitting_pairs("reward", pairs, renderer, 9).figures == {
        "equal_tokens": 1,
        "shortest_tokens": 5,
        "median_tokens": 6,
        "longest_tokens": 6,
        "special_strings": 1,
        "labels_in_texts": 0,
        "rewritten_texts": 0,
        "opened_otherwise": 0,
        "merged_tokens": 1,
    }


def test_a_note_is_told_once_with_the_first_rows_that_it_was_called_for_in(renderer, capsys):
    fitting_prompts("grpo", prompts("the", *["a </s>"] * 6, "<s>"), renderer, 9)
    said = capsys.readouterr().err.splitlines()
    assert "7 prompts hold strings of special tokens, encoded as text (</s>, <s>): prompt 1, 2, 3, 4, 5 and 2 more" in said
    pair = Pair((Message("user", "the"),), "child", "drops")
    fitting_pairs("reward", [pair, pair], renderer, 9)
    written = "2 pairs are conversations, written as Human: and Assistant: turns, since no chat template is applied: pair 0, 1"
    assert written in capsys.readouterr().err.splitlines()


def test_pairs_whose_sides_are_the_same_tokens_are_dropped_and_named_and_count_as_no_skipped_ones(renderer, capsys):
    pairs = [Pair(None, "the  child", "the child"), Pair(None, words(9), "the"), Pair(None, "the", "child")]
    found = fitting_pairs("reward", pairs, renderer, 6)
    assert (found.indexes, found.skipped_long, found.figures["equal_tokens"]) == ([2], 1, 1)
    assert "dropped 1 pairs whose sides are the same tokens as rendered: pair 0" in capsys.readouterr().err.splitlines()
    with pytest.raises(
        TrainingError, match=r"^artifacts/validate: every pair has sides that are the same tokens as rendered, so there is nothing to"
    ):
        fitting_pairs("reward", pairs[:1], renderer, 6)


def test_the_strings_that_are_named_are_those_of_the_rows_told_of(renderer, capsys):
    fitting_pairs("reward", [Pair(None, "the </s>", "child")], renderer, 9)
    capsys.readouterr()
    fitting_prompts("grpo", prompts("the <s>"), renderer, 9)
    assert "1 prompts hold strings of special tokens, encoded as text (<s>): prompt 0" in capsys.readouterr().err.splitlines()


def test_no_pairs_at_all_fit_without_a_word(renderer, capsys):
    assert fitting_pairs("evaluate", [], renderer, 5, "evaluate on").pairs == []
    assert capsys.readouterr().err == ""


def test_five_rows_are_named_without_a_rest_and_the_count_is_of_those_skipped(renderer, capsys):
    found = fitting_prompts("grpo", prompts(*[words(9)] * 5, "the"), renderer, 4)
    assert found.skipped_long == 5
    assert "skipped 5 prompts longer than max_sequence 4, of up to 10 tokens: prompt 0, 1, 2, 3, 4" in capsys.readouterr().err.splitlines()


def test_a_row_that_cannot_be_rendered_is_named():
    base = dataclasses.replace(runs.base_record(), chat_template="applied")
    tokenizer = toy.tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] + (1 if messages[0]['content'] == 'the' else '') }}"
    with pytest.raises(DataError, match=r"^base\.chat_template: the checkpoint's template refuses user .*\(prompt 1\)$"):
        fitting_prompts("grpo", prompts("a", "the"), Renderer(tokenizer, base), 9)

"""Rendering: one begin token at most, one end token at the end, and a side that starts with the very ids of its prompt."""

import dataclasses

import pytest

from stages.core.errors import BaseError, DataError
from stages.files.records import Pair
from stages.model.rendering import EncodedPair, Renderer
from tests import tiny

BEGIN, END, TURN, UNKNOWN = (tiny.IDS[token] for token in (tiny.BEGIN, tiny.END, tiny.TURN, tiny.UNKNOWN))
BEGINS_ITSELF = "{{ '<s> ' }}" + tiny.CHAT


def renderer(chat_template: str = "absent", *, begins: bool = False, template: str | None = None, **settings: object) -> Renderer:
    words = tiny.tokenizer(begins=begins, template=template, **settings)
    return Renderer(words, tiny.base(words, chat_template))


@pytest.mark.parametrize(("begins", "begin"), [(False, []), (True, [BEGIN])])
def test_raw_text_begins_with_the_tokenizers_own_token_and_a_side_ends_with_the_end_token(begins: bool, begin: list[int]):
    raw = renderer(begins=begins)
    assert raw.prompt("the child drops") == [*begin, *tiny.ids("the child drops")]
    assert raw.pair(Pair("the child", "is calm", "is harsh")) == EncodedPair(
        [*begin, *tiny.ids("the child is calm"), END], [*begin, *tiny.ids("the child is harsh"), END]
    )
    assert raw.pair(Pair(None, "is calm", "harsh")) == EncodedPair([*begin, *tiny.ids("is calm"), END], [*begin, *tiny.ids("harsh"), END])


def test_raw_text_that_starts_with_the_begin_token_does_not_get_another():
    raw = renderer(begins=True)
    assert raw.prompt("<s> the child") == [BEGIN, *tiny.ids("the child")]
    assert raw.pair(Pair("<s> the child", "is calm", "fine")).rejected == [BEGIN, *tiny.ids("the child fine"), END]


def test_an_applied_template_ends_a_prompt_with_the_generation_marker():
    chat = renderer("applied", template=tiny.CHAT)
    assert chat.prompt_text("the child") == "user : the child <turn> over assistant : "
    assert chat.prompt("the child") == tiny.ids("user : the child <turn> over assistant :")


def test_what_the_template_writes_after_the_end_of_a_side_is_cut():
    chat = renderer("applied", template=tiny.CHAT)
    opening = tiny.ids("user : the child <turn> over assistant :")
    assert chat.pair(Pair("the child", "is calm", "harsh")) == EncodedPair(
        [*opening, *tiny.ids("is calm"), TURN], [*opening, *tiny.ids("harsh"), TURN]
    )
    assert chat.pair(Pair(None, "is calm", "harsh")).chosen == tiny.ids("assistant : is calm <turn>")


def test_a_template_that_ends_nothing_gets_the_end_token_appended():
    template = tiny.CHAT.replace(" <turn> over ", " ")
    chat = renderer("applied", template=template)
    assert chat.pair(Pair("the child", "is calm", "harsh")).chosen == [*tiny.ids("user : the child assistant : is calm"), END]


@pytest.mark.parametrize("chat_template", ["absent", "off"])
def test_a_template_that_is_not_applied_leaves_the_text_raw(chat_template: str):
    raw = renderer(chat_template, template=tiny.CHAT)
    assert raw.prompt_text("the child") == "the child"
    assert raw.prompt("the child") == tiny.ids("the child")


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize(
    ("chat_template", "template", "expected"),
    [("applied", BEGINS_ITSELF, 1), ("applied", tiny.CHAT, 0), ("absent", None, None), ("off", BEGINS_ITSELF, None)],
)
def test_no_prompt_and_no_side_has_two_begin_tokens(begins: bool, chat_template: str, template: str | None, expected: int | None):
    rendered = renderer(chat_template, begins=begins, template=template)
    # A rendered template has what it wrote, raw text what the tokenizer puts there.
    begin = int(begins) if expected is None else expected
    for ids in (rendered.prompt("the child"), *rendered.pair(Pair("the child", "is calm", "harsh"))):
        assert ids.count(BEGIN) == begin
        assert (ids[0] == BEGIN) == bool(begin)


@pytest.mark.parametrize(
    ("chat_template", "template"), [("applied", tiny.CHAT), ("applied", BEGINS_ITSELF), ("off", tiny.CHAT), ("absent", None)]
)
@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_a_side_is_the_prompts_ids_then_the_answers_whatever_side_the_tokenizer_pads(
    chat_template: str, template: str | None, begins: bool, padding_side: str
):
    rendered = renderer(chat_template, begins=begins, template=template, padding_side=padding_side, pad=tiny.END)
    prompt = rendered.prompt("the guest breaks a cup")
    pair = rendered.pair(Pair("the guest breaks a cup", "is calm", "is harsh : over"))
    end = TURN if chat_template == "applied" else END
    assert pair == EncodedPair([*prompt, *tiny.ids("is calm"), end], [*prompt, *tiny.ids("is harsh : over"), end])
    assert pair.longest == len(prompt) + 5


def test_the_order_of_the_sides_does_not_count_for_the_longer_one():
    assert EncodedPair([1, 2, 3], [1]).longest == EncodedPair([1], [1, 2, 3]).longest == 3


def test_a_template_that_refuses_the_turns_is_told_in_one_line():
    template = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('must start\nwith a user') }}{% endif %}" + tiny.CHAT
    chat = renderer("applied", template=template)
    chat.pair(Pair("the child", "is calm", "harsh"))
    with pytest.raises(DataError) as caught:
        chat.pair(Pair(None, "is calm", "harsh"))
    assert caught.value.lines() == [
        "base.chat_template: the checkpoint's template refuses assistant (must start with a user); "
        "give every pair a prompt, or set base.chat_template=off"
    ]


@pytest.mark.parametrize(
    "template",
    [
        # another opening where the answer holds a word
        "{% if 'harsh' in messages[-1]['content'] %}{{ 'over ' }}{% endif %}" + tiny.CHAT,
        # a marker that no answer is written behind
        tiny.CHAT.replace("'assistant : ' }}{% endif %}", "'assistant : over ' }}{% endif %}"),
    ],
)
def test_a_template_that_writes_the_prompt_otherwise_before_an_answer_is_refused(template: str):
    chat = renderer("applied", template=template)
    with pytest.raises(DataError) as caught:
        chat.pair(Pair("the child", "is calm", "is harsh"))
    (line,) = caught.value.lines()
    assert line.startswith("base.chat_template: the template writes the prompt 'the child' otherwise before an answer")


def test_words_that_the_tokenizer_does_not_know_are_counted_by_name():
    raw = renderer()
    assert raw.prompt("the zebra drops the 🦓 zebra") == [*tiny.ids("the"), UNKNOWN, *tiny.ids("drops the"), UNKNOWN, UNKNOWN]
    raw.pair(Pair("the child", "is zebra", "fine"))
    assert raw.unknown == {"zebra": 3, "🦓": 1}


def test_nothing_is_counted_where_every_word_is_known_or_the_tokenizer_has_no_unknown_token():
    raw = renderer()
    raw.pair(Pair("the child", "is calm", "harsh"))
    assert raw.unknown == {}
    silent = renderer(unknown=False)
    silent.prompt("the zebra")
    assert silent.unknown == {}


def test_a_completion_is_shown_without_special_tokens_and_a_sequence_with_them():
    raw = renderer(begins=True)
    ids = raw.pair(Pair("the child", "is calm", "harsh")).chosen
    assert raw.text(ids) == "the child is calm"
    assert raw.shown(ids) == f"'<s> the child is calm </s>' = {ids}"


def test_a_template_that_asks_for_the_date_gets_the_same_one_every_day():
    dated = renderer("applied", template="{{ strftime_now('%d %B %Y') }} {{ messages[0]['content'] }}")
    assert dated.prompt_text("red") == "01 January 2025 red"


@pytest.mark.parametrize("template", ["{{ messages[0]['content'] + 1 }}", "{{ 1 / 0 }}", "{{ messages[7]['content'].x.y }}"])
def test_a_template_with_a_fault_of_its_own_is_told_in_one_line(template: str):
    with pytest.raises(DataError, match=r"^base\.chat_template: the checkpoint's template refuses user ") as caught:
        renderer("applied", template=template).prompt("red")
    (line,) = caught.value.lines()
    assert "give every pair a prompt" not in line


def test_a_token_beyond_the_embedding_is_refused_by_name():
    words = tiny.tokenizer()
    rows = len(words)
    words.add_tokens(["brandnew"])
    raw = Renderer(words, dataclasses.replace(tiny.base(words, "absent"), vocabulary=rows))
    assert raw.prompt("the child") == tiny.ids("the child")
    with pytest.raises(BaseError) as caught:
        raw.prompt("the brandnew child")
    assert caught.value.lines() == [
        f"base.model: the tokenizer gives token {rows} ('brandnew'), and the embedding has {rows} rows; "
        "resize the model's embedding to its tokenizer and save both"
    ]


def test_a_template_without_end_is_refused_in_one_line():
    chat = renderer("applied", template="{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}")
    with pytest.raises(DataError, match=r"^base\.chat_template: the checkpoint's template refuses user \(maximum recursion"):
        chat.prompt("the child")

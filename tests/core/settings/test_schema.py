import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from stages.core.settings.schema import at_least, build_one_of, finite_above_zero, leaves, neighbour, not_empty, setting, show


@dataclass(frozen=True)
class Sample:
    rate: float = setting(finite_above_zero("the rate must be finite and above zero"))
    count: int = setting(at_least(1, "the count must be at least one"))
    flag: bool = setting()
    name: str = setting(not_empty("a name is expected"))
    limit: int | None = setting()
    note: str | None = setting()
    words: str | list[str] = setting()
    numbers: str | list[int] = setting()


GOOD: dict[str, Any] = {
    "rate": 0.5,
    "count": 3,
    "flag": False,
    "name": "calm",
    "limit": None,
    "note": None,
    "words": ["a", "b"],
    "numbers": "all",
}


def problems(**changed: Any) -> list[str]:
    return build_one_of((Sample,), "sample", {**GOOD, **changed}).problems


def built(**changed: Any) -> Any:
    found = build_one_of((Sample,), "sample", {**GOOD, **changed})
    assert found.problems == []
    return found.value


def test_a_section_that_holds_is_returned_with_its_values():
    assert built() == Sample(0.5, 3, False, "calm", None, None, ["a", "b"], "all")


@pytest.mark.parametrize(
    ("written", "number"),
    [("5e-5", 5e-5), ("5.0e-5", 5e-5), ("1e-06", 1e-6), ("0.7", 0.7), ("1_000", 1000.0), (2, 2.0), (1e-6, 1e-6)],
)
def test_a_number_for_a_float_is_read_however_it_is_written(written, number):
    value = built(rate=written).rate
    assert (type(value), value) == (float, number)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rate", "yes", 'sample.rate: expected a number, found "yes" (a text)'),
        ("rate", True, "sample.rate: expected a number, found true (a boolean)"),
        ("rate", "0,00005", 'sample.rate: expected a number, found "0,00005" (a text)'),
        ("rate", "", 'sample.rate: expected a number, found "" (a text)'),
        ("rate", " 5", 'sample.rate: expected a number, found " 5" (a text)'),
        ("rate", [0.1], "sample.rate: expected a number, found [0.1] (a list)"),
        ("rate", {"a": 1}, 'sample.rate: expected a number, found {"a": 1} (a mapping)'),
        ("count", 8.0, "sample.count: expected a whole number, found 8.0 (a decimal number)"),
        ("count", True, "sample.count: expected a whole number, found true (a boolean)"),
        ("count", "8", 'sample.count: expected a whole number, found "8" (a text)'),
        ("count", 5e-5, "sample.count: expected a whole number, found 5e-05 (a decimal number)"),
        ("flag", 1, "sample.flag: expected true or false, found 1 (a whole number)"),
        ("flag", "yes", 'sample.flag: expected true or false, found "yes" (a text)'),
        ("limit", "none", 'sample.limit: expected a whole number or null, found "none" (a text)'),
        ("words", 3, "sample.words: expected a text or a list of texts, found 3 (a whole number)"),
        ("words", ["a", 1], 'sample.words: expected a text or a list of texts, found ["a", 1] (a list)'),
        ("numbers", ["1"], 'sample.numbers: expected a text or a list of whole numbers, found ["1"] (a list)'),
        ("numbers", [True], "sample.numbers: expected a text or a list of whole numbers, found [true] (a list)"),
    ],
)
def test_a_value_of_another_type_is_refused_with_key_value_and_both_types(key, value, message):
    assert problems(**{key: value}) == [message]


def test_a_number_where_a_text_belongs_is_told_how_to_be_quoted():
    assert problems(note=1234567) == [
        "sample.note: expected a text or null, found 1234567 (a whole number); "
        "a text that looks like one is put in quotes: sample.note='\"1234567\"'"
    ]


@pytest.mark.parametrize("value", [0, -0.0, math.nan, math.inf, -math.inf, "nan", "inf", "1e999", -1])
def test_what_is_not_finite_or_not_above_zero_fails_its_check(value):
    assert problems(rate=value) == [f"sample.rate: the rate must be finite and above zero (found {show(value)})"]


@pytest.mark.parametrize("check", [at_least(0, "no"), finite_above_zero("no")])
def test_nan_passes_no_check(check):
    assert check(math.nan) == "no"


def test_a_whole_number_beyond_every_float_is_refused():
    assert problems(rate=10**400)[0].startswith("sample.rate: expected a number, found 1000")


@pytest.mark.parametrize("key", ["rate", "count", "flag", "name", "words"])
@pytest.mark.parametrize("absent", [None, "???"])
def test_null_and_question_marks_are_missing(key, absent):
    assert problems(**{key: absent}) == [
        f"sample.{key} is missing: set it in conf/sample/ or with python -m stages.compose sample.{key}=..."
    ]


@pytest.mark.parametrize("key", list(GOOD))
def test_an_absent_key_is_missing_even_where_null_is_allowed(key):
    found = build_one_of((Sample,), "sample", {name: value for name, value in GOOD.items() if name != key})
    assert [line.split(":")[0] for line in found.problems] == [f"sample.{key} is missing"]
    assert found.value is None


def test_question_marks_are_missing_even_where_null_is_allowed():
    assert problems(note="???")[0].startswith("sample.note is missing")


def test_all_problems_are_told_at_once_and_one_per_key():
    lines = problems(rate="x", count=0, name="", other=1)
    assert [line.split(" ")[0].rstrip(":") for line in lines] == ["sample.other", "sample.rate", "sample.count", "sample.name"]


def test_zero_false_and_null_are_values():
    assert built(flag=False, limit=0, note=None) == Sample(0.5, 3, False, "calm", 0, None, ["a", "b"], "all")


@pytest.mark.parametrize("values", [3, "text", ["a"]])
def test_a_section_that_is_no_mapping_is_refused(values):
    assert build_one_of((Sample,), "sample", values).problems[0].startswith("sample: expected a mapping of settings, found")


def test_a_section_that_is_not_there_is_missing_as_a_whole():
    assert build_one_of((Sample,), "sample", None).problems[0].startswith("sample is missing: ")


@pytest.mark.parametrize("key", [1, True, None])
def test_a_key_that_is_no_text_is_unknown(key):
    assert build_one_of((Sample,), "sample", {**GOOD, key: 1}).problems[0].startswith(f"sample.{key} is not a setting")


KNOWN = ["grpo.beta", "grpo.learning_rate", "grpo.temperature", "grpo.max_new_tokens", "reward.learning_rate", "evaluate.temperature"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("grpo.betta", "grpo.beta"),
        ("reward.beta", "grpo.beta"),  # right key, wrong section
        ("beta", "grpo.beta"),
        ("gpro.beta", "grpo.beta"),
        ("reward.learning_rte", "reward.learning_rate"),  # the section decides between equals
        ("grpo.learning_rte", "grpo.learning_rate"),
        ("evaluation.temperature", "evaluate.temperature"),
        ("grpo.max_tokens", "grpo.max_new_tokens"),
        ("grpo.zzz", None),
    ],
)
def test_the_nearest_neighbour_goes_by_the_last_word_first(written, meant):
    assert neighbour(written, KNOWN) == meant


def test_an_unknown_key_without_a_neighbour_is_told_what_there_is():
    assert problems(zzz=1)[0] == "sample.zzz is not a setting; sample has count, flag, limit, name, note, numbers, rate, words"


def test_an_unknown_key_is_compared_with_the_keys_of_other_sections_too():
    assert build_one_of((Sample,), "sample", {**GOOD, "betta": 1}, KNOWN).problems == [
        "sample.betta is not a setting; did you mean grpo.beta?"
    ]


@dataclass(frozen=True)
class One:
    OPTION: ClassVar[str] = "shape=one"
    seed: int = setting()
    size: int = setting()


@dataclass(frozen=True)
class Other:
    OPTION: ClassVar[str] = "shape=other"
    model: str = setting()
    size: int = setting()


def test_a_section_of_several_shapes_is_read_as_the_one_that_it_has_the_keys_of():
    assert build_one_of((One, Other), "shape", {"seed": 1, "size": 2}).value == One(1, 2)
    assert build_one_of((One, Other), "shape", {"model": "m", "size": 2}).value == Other("m", 2)


def test_a_key_of_the_other_shape_is_told_whose_it_is():
    assert build_one_of((One, Other), "shape", {"seed": 1, "size": 2, "model": "m"}).problems == [
        "shape.model belongs to shape=other; shape=one has seed, size: choose the other, or drop shape.model"
    ]


def test_a_long_value_is_repeated_in_part():
    assert show("x" * 500) == '"' + "x" * 59 + "..."


@dataclass(frozen=True)
class Names:
    first: str | None = setting(not_empty("a name is expected"))
    last: str = setting()


@dataclass(frozen=True)
class Nested:
    names: Names = setting()
    count: int = setting()


def test_a_mapping_within_a_section_is_read_and_checked_as_one():
    assert build_one_of((Nested,), "data", {"names": {"first": None, "last": "b"}, "count": 1}).value == Nested(Names(None, "b"), 1)
    assert leaves(Nested) == {"names.first", "names.last", "count"}
    assert build_one_of((Nested,), "data", {"names": {"first": "", "lst": "b"}, "count": "x"}).problems == [
        "data.names.lst is not a setting; did you mean data.names.last?",
        'data.names.first: a name is expected (found "")',
        "data.names.last is missing: set it in conf/data/ or with python -m stages.compose data.names.last=...",
        'data.count: expected a whole number, found "x" (a text)',
    ]
    assert build_one_of((Nested,), "data", {"names": "x", "count": 1}).problems == [
        'data.names: expected a mapping of settings, found "x" (a text)'
    ]
    assert build_one_of((Nested,), "data", {"count": 1}).problems == [
        "data.names is missing: set it in conf/data/ or with python -m stages.compose data.names=..."
    ]

"""Strict JSON: every value is found where it begins. What is refused is tested with the files it stands in, in test_sets.py."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.files.intake import strict_json
from tests.files.test_records import VALUES


@settings(max_examples=100, deadline=None)
@given(VALUES, st.sampled_from([None, 1]))
def test_every_value_of_a_sound_text_is_found_where_it_begins(value: Any, indent: int | None):
    text = json.dumps(value, indent=indent)
    assert strict_json.parse(text) == value
    found = strict_json.starts(text)
    for keys, start in found.items():
        expected = value
        for key in keys:
            expected = expected[key]
        assert json.JSONDecoder().raw_decode(text, start)[0] == expected
        within = strict_json.starts(text, start=start)
        assert within == {inner[len(keys) :]: place for inner, place in found.items() if inner[: len(keys)] == keys}
    assert strict_json.starts(text, depth=1) == {keys: start for keys, start in found.items() if len(keys) <= 1}

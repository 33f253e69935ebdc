"""The interval of a mean by a version's settings, and what is noted where two versions are not what they seem."""

from typing import Any

import numpy as np
import pytest

from stages.learning.metrics import bootstrap_mean
from stages.versions import comparison, figures, rows
from stages.versions.comparison import Side, Version
from tests.versions.projects import base, samples

VALUES = np.array([0.0, 1.0, 2.0, 5.0])


def version(settings: dict[str, Any] | None) -> Version:
    return read(settings=settings)


def read(**parts: Any) -> Version:
    """A version of which this was read, and nothing else."""
    nothing = {"settings": {}, "made_with": {}, "base": None, "samples": None, "unavailable": []}
    lists = {"reports": dict.fromkeys(figures.REPORTS), "artifacts": dict.fromkeys(comparison.ARTIFACTS), "rows": dict.fromkeys(rows.FILES)}
    return Version(side=Side("v", None, "v"), **{**nothing, **lists, **parts})


def test_the_interval_is_the_one_that_evaluate_would_report():
    average = comparison.averaging(version({"evaluate.bootstrap": 50, "evaluate.seed": 7}), bootstrap_mean)
    assert average(VALUES) == bootstrap_mean(VALUES, 50, 7)
    assert average(VALUES)[1] < 2.0 < average(VALUES)[2]


@pytest.mark.parametrize(
    ("resamples", "seed"), [(None, 7), (50, None), (0, 7), (50, -1), (10**12, 7), (50, 2**70), ("50", 7), (50.0, 7), (True, 7)]
)
def test_settings_that_say_no_interval_give_none(resamples: Any, seed: Any):
    average = comparison.averaging(version({"evaluate.bootstrap": resamples, "evaluate.seed": seed}), bootstrap_mean)
    assert average(VALUES) == (2.0, None, None)
    assert comparison.averaging(version(None), bootstrap_mean)(VALUES) == (2.0, None, None)


def notes(a: Version, b: Version) -> list[str]:
    """What is noted, less that there are no reward models here."""
    return [note for note in comparison.compare(a, b, bootstrap_mean).notes if "not both to be had" not in note]


def test_outputs_that_were_made_with_other_settings_are_noted_by_stage():
    settings = {"grpo.beta": 0.9, "grpo.rank": 4, "evaluate.seed": 7}
    edited = read(settings=settings, made_with={"grpo": {"grpo.beta": 0.04, "grpo.rank": 4}, "evaluate": {"evaluate.seed": 7}})
    assert notes(read(), edited) == ["v: what grpo made is of other settings (grpo.beta 0.04 then, 0.9 now); dvc repro makes it anew"]
    assert notes(edited, read())[0].startswith("v: what grpo made")
    assert notes(read(), read(settings={"grpo.beta": 1e-6}, made_with={"grpo": {"grpo.beta": "1e-06"}})) == []  # as DVC writes it


def test_a_precision_or_a_template_that_differs_is_noted_of_the_draws():
    drawn = {"samples": samples()}
    found = notes(read(base=base(), **drawn), read(base=base(precision="bf16", chat_template="off"), **drawn))
    assert "held-out completions were not drawn alike: base.precision, base.chat_template differ" in found
    unreadable = notes(read(settings=None, **drawn), read(settings={"evaluate.seed": 7}, **drawn))
    assert not any("not drawn alike" in note for note in unreadable)

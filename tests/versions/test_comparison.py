"""The interval of a mean, by the settings of a version or without them."""

from typing import Any

import numpy as np
import pytest

from stages.learning.metrics import bootstrap_mean
from stages.versions import comparison
from stages.versions.comparison import Side, Version

VALUES = np.array([0.0, 1.0, 2.0, 5.0])


def version(settings: dict[str, Any] | None) -> Version:
    return Version(Side("v", None, "v"), settings, None, {}, {}, {}, None, [])


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

"""The sentence at the top of the page, and when each warning stands under it."""

import pytest

from stages.pages.verdict import verdict
from tests.pages.measured import evaluated, grpo, reward


def sentence(**changes):
    return verdict(evaluated(**changes), reward(), grpo()).sentence


def warnings(of_grpo=None, of_reward=None, **changes):
    return verdict(evaluated(**changes), reward(**(of_reward or {})), grpo(**(of_grpo or {}))).warnings


def test_a_gain_whose_interval_lies_above_zero_is_one():
    assert sentence() == (
        "The policy got better: on 3 held-out prompts its reward is 0.5 higher than the base's, 95% interval [0.45, 0.55], "
        "and it wins 60% of the draws."
    )


def test_a_loss_is_named_so():
    found = sentence(reward_gain=-1.23456, reward_gain_low=-2.0, reward_gain_high=-0.1, win_rate=0.25)
    assert found.startswith("The policy got worse: on 3 held-out prompts its reward is 1.23 lower than the base's, 95% interval [-2, -0.1]")


@pytest.mark.parametrize(("low", "high"), [(-0.1, 1.0), (0.0, 1.0), (-1.0, 0.0)])
def test_an_interval_that_holds_zero_shows_nothing(low, high):
    found = sentence(reward_gain_low=low, reward_gain_high=high)
    assert found.startswith("No difference is shown: ")
    assert found.endswith("which holds 0.")


def test_one_prompt_and_none_show_nothing():
    one = sentence(evaluated_prompts=1, reward_gain_low=None, reward_gain_high=None)
    assert one == "Nothing is shown: on 1 held-out prompt its reward is 0.5 higher than the base's, and one prompt has no interval."
    none = sentence(reward_gain=None, reward_gain_low=None, reward_gain_high=None)
    assert none == "No prompt was held out, so nothing is known of whether the policy got better."


def test_where_all_is_well_there_is_no_warning():
    assert warnings() == []


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"policy_truncated": 1.0}, "all of the policy's completions were truncated at evaluate.max_new_tokens (24)"),
        ({"policy_truncated": 0.5}, "50% of the policy's completions were truncated"),
        ({"mean_kl": 1.5}, "the KL to the base has blown up: 1.5 nats per token; raise grpo.beta"),
        ({"reward_length_correlation": -0.85}, "the reward is tied to length: over the held-out completions their correlation is -0.85"),
        (
            {"accuracy": 0.6, "accuracy_low": 0.45},
            "the reward model is near chance: it orders 60% of the held-out pairs right [0.45, 0.99]",
        ),
        ({"accuracy": 1.0, "accuracy_low": None, "accuracy_high": None}, "the reward model is near chance"),
        ({"accuracy": None, "accuracy_low": None, "accuracy_high": None}, "no pair was held out"),
        ({"of_grpo": {"flat_groups": 0.75}}, "in the last iteration 75% of the groups were flat"),
        ({"of_grpo": {"warning": "no completion ended"}}, "the last iteration of grpo: no completion ended"),
        ({"of_grpo": {"refused_groups": 3}}, "3 groups were refused in training"),
        ({"of_reward": {"skipped_long": 2}}, "2 pairs were too long to be trained on"),
    ],
)
def test_each_warning_stands_alone(changes, phrase):
    (found,) = warnings(**changes)
    assert found.startswith(phrase)


def test_below_their_thresholds_they_are_silent_and_nulls_are_no_warning():
    nothing = dict.fromkeys(("reward_length_correlation", "mean_kl", "policy_truncated"))
    assert warnings(of_grpo={"flat_groups": 0.49}, policy_truncated=0.49, mean_kl=0.99, reward_length_correlation=0.79) == []
    assert warnings(**nothing) == []

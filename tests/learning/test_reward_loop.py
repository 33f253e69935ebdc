"""Training a reward model on the random toy: identities, windows, batches, what is reported and what stays frozen."""

import itertools
import json
import math
import re

import numpy as np
import pytest
import torch

from stages.core.errors import TrainingError
from stages.files.history import HistoryFile
from stages.learning import reward_loop, schedule
from stages.learning.reward_loop import CURVE, shuffled
from stages.model.rendering import EncodedPair
from stages.model.reward_model import RewardModel
from tests import tiny
from tests.learning import runs
from tests.learning.runs import calm_pairs, train_reward

pytestmark = pytest.mark.slow

LN2_FLOAT32 = 0.6931471824645996


@pytest.fixture(scope="module")
def recorded():
    """8 calm pairs, 3 epochs, rank 8, alpha 16, accumulation 4, learning rate 5e-3, no warm-up, on random weights."""
    return train_reward(calm_pairs())


@pytest.mark.parametrize("count", range(1, 10))
def test_the_first_loss_is_float32_ln_2_whatever_the_batch(count):
    assert train_reward(calm_pairs(count), epochs=1, accumulation=count, batch_size=count).run.first_loss == LN2_FLOAT32


def test_calm_pairs_are_learned_in_three_epochs(recorded):
    run = recorded.run
    assert run.accuracy == 1.0
    assert run.tied_pairs == 0
    assert run.mean_score_margin > 0
    assert run.mean_score_margin == pytest.approx(run.mean_chosen_score - run.mean_rejected_score)
    assert run.final_loss < 0.6
    assert run.final_loss == run.steps[-1]["loss"]
    assert run.mean_final_epoch_loss == pytest.approx((run.steps[-2]["loss"] + run.steps[-1]["loss"]) / 2)


@pytest.mark.parametrize("accumulation", [8, 9])
def test_one_epoch_in_one_window_is_measured_before_its_step_and_so_all_ties(accumulation):
    run = train_reward(calm_pairs(), epochs=1, accumulation=accumulation, learning_rate=0.1).run
    assert (run.accuracy, run.mean_score_margin, run.tied_pairs) == (0.0, 0.0, 8)
    assert (run.first_loss, run.final_loss, run.mean_final_epoch_loss) == (LN2_FLOAT32,) * 3


def test_seventeen_tensors_with_7232_parameters_are_trained(recorded):
    # 4 layers; query 64 -> 64 and value 64 -> 32 at rank 8: 4 * (8*64 + 64*8 + 8*64 + 32*8) = 7168; the head has 64
    assert len(recorded.tensors) == 17
    assert sum(tensor.size for tensor in recorded.tensors.values()) == 7232
    assert recorded.tensors["reward.head"].shape == (1, 64)
    assert all(tensor.dtype == np.float32 for tensor in recorded.tensors.values())


def test_the_head_trains_and_no_factor_sits_on_it(recorded):
    assert recorded.tensors["reward.head"].any()
    assert not [name for name in recorded.tensors if "head" in name and "lora" in name]


def test_every_factor_moves(recorded):
    fresh = RewardModel.fresh(tiny.adapted(runs.frozen_toy()), recorded.plan, 42).trainable()
    assert list(fresh) == list(recorded.tensors)
    assert all(not np.array_equal(tensor.detach().numpy(), recorded.tensors[name]) for name, tensor in fresh.items())


def test_progress_has_the_documented_lines(recorded):
    said = recorded.said
    number, share = r"-?\d+\.\d{4}", r"[01]\.\d{3}"
    expected = [r"training 17 tensors \(7232 parameters\) at rank 8 across 4 layers"]
    for epoch in (1, 2, 3):
        steps = (2 * epoch - 1, 2 * epoch)
        expected += [f"epoch {epoch}/3 step {step}/6 loss {number} accuracy {share} score margin {number}" for step in steps]
        expected.append(rf"epoch {epoch}/3 mean loss {number} accuracy {share} ties \d/8 score margin {number}")
    assert len(said) == len(expected)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(expected, said, strict=True)), said
    run = recorded.run
    assert said[-1] == (
        f"epoch 3/3 mean loss {run.mean_final_epoch_loss:.4f} accuracy 1.000 ties 0/8 score margin {run.mean_score_margin:.4f}"
    )


def test_each_step_is_a_row_of_the_curve_and_of_the_history(recorded):
    rows = recorded.run.steps
    assert recorded.appended == rows
    assert all(tuple(row) == CURVE for row in rows)
    assert [(row["step"], row["epoch"]) for row in rows] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]
    assert [row["learning_rate"] for row in rows] == [schedule.learning_rate(step, 6, 5e-3, 0) for step in range(6)]
    assert all(row["grad_norm"] > 0 for row in rows)


def test_steps_reach_the_history_file_as_they_are_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reward_model = RewardModel.fresh(tiny.adapted(runs.frozen_toy()), plan := runs.toy_plan(runs.frozen_toy()), 42)
    history = HistoryFile("reward")
    run = reward_loop.fit(reward_model, plan, runs.fitting_pairs(calm_pairs(2)), runs.reward_settings(epochs=2), history)
    assert [json.loads(line) for line in history.path.read_text().splitlines()] == run.steps


def test_the_base_is_bitwise_what_it_was_and_so_is_what_it_computes_with_the_adapters_off(recorded):
    runs.require_frozen(recorded, calm_pairs()[0].chosen, "reward")


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(recorded):
    again, other = train_reward(calm_pairs()), train_reward(calm_pairs(), seed=43)
    assert again.bytes() == recorded.bytes()
    assert again.run == recorded.run
    assert all(one != two for one, two in zip(other.bytes().values(), recorded.bytes().values(), strict=True))


# Order and windows


def test_the_order_of_the_pairs_is_a_permutation_by_seed_and_epoch():
    orders = [shuffled(20, seed, epoch) for seed, epoch in itertools.product((0, 1), (0, 1, 2))]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6  # by chance two of six agree once in 1e17
    assert shuffled(20, 1, 2) == orders[-1]


def plain_gradient(reward_model, window) -> list[torch.Tensor]:
    """Of the mean pairwise loss, one unpadded side at a time, straight through transformers' decoder."""

    def score(row):
        hidden = reward_model.model.model(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state
        return (hidden[0, -1] * reward_model.head[0]).sum()

    losses = [torch.log1p(torch.exp(score(pair.rejected) - score(pair.chosen))) for pair in window]
    return list(torch.autograd.grad(sum(losses) / len(losses), list(reward_model.trainable().values())))


def test_a_window_ends_with_its_epoch_and_divides_by_its_own_pairs(monkeypatch):
    pairs = calm_pairs(5)
    model = runs.frozen_toy()
    reward_model = RewardModel.fresh(tiny.adapted(model), plan := runs.toy_plan(model), 42)
    with runs.watching(monkeypatch, reward_loop) as seen:
        run = reward_loop.fit(
            reward_model, plan, runs.fitting_pairs(pairs), runs.reward_settings(epochs=2, accumulation=3, batch_size=2), runs.Appended()
        )
    # 5 pairs by 3: windows of 3 and 2 in each epoch
    orders = [[pairs[index] for index in shuffled(5, 42, epoch)] for epoch in range(2)]
    windows = [window for order in orders for window in (order[:3], order[3:])]
    assert [row["epoch"] for row in run.steps] == [1, 1, 2, 2]
    for snapshot, window in zip(seen, windows, strict=True):
        with torch.no_grad():
            for parameter, tensor in zip(reward_model.trainable().values(), snapshot.tensors, strict=True):
                parameter.copy_(tensor)
        for found, expected in zip(snapshot.gradients, plain_gradient(reward_model, window), strict=True):
            assert (found - expected).norm() <= 1e-5 * expected.norm() + 1e-9


def test_reported_scores_are_those_of_the_final_epoch_before_each_step(monkeypatch):
    """Recomputed with the weights as they stood before the last epoch's two steps."""
    pairs = calm_pairs()
    model = runs.frozen_toy()
    reward_model = RewardModel.fresh(tiny.adapted(model), plan := runs.toy_plan(model), 42)
    with runs.watching(monkeypatch, reward_loop) as seen:
        run = reward_loop.fit(reward_model, plan, runs.fitting_pairs(pairs), runs.reward_settings(epochs=2), runs.Appended())
    order = [pairs[index] for index in shuffled(8, 42, 1)]
    chosen, rejected = [], []
    for snapshot, window in zip(seen[2:], (order[:4], order[4:]), strict=True):
        with torch.no_grad():
            for parameter, tensor in zip(reward_model.trainable().values(), snapshot.tensors, strict=True):
                parameter.copy_(tensor)
            chosen += [reward_model.scores(tiny.whole([pair.chosen])).item() for pair in window]
            rejected += [reward_model.scores(tiny.whole([pair.rejected])).item() for pair in window]
    losses = [math.log1p(math.exp(bad - good)) for good, bad in zip(chosen, rejected, strict=True)]
    assert run.mean_chosen_score == pytest.approx(sum(chosen) / 8, rel=1e-4)
    assert run.mean_rejected_score == pytest.approx(sum(rejected) / 8, rel=1e-4)
    assert run.accuracy == sum(good > bad for good, bad in zip(chosen, rejected, strict=True)) / 8
    assert run.mean_final_epoch_loss == pytest.approx(sum(losses) / 8, rel=1e-5)
    assert run.final_loss == pytest.approx(sum(losses[4:]) / 4, rel=1e-5)


def test_pairs_per_forward_pass_change_no_number_beyond_rounding(monkeypatch):
    found = []
    for batch_size in (1, 2, 4, 8):
        with runs.watching(monkeypatch, reward_loop) as seen:
            trained = train_reward(calm_pairs(), epochs=2, accumulation=8, batch_size=batch_size)
        found.append((trained, seen))
    first, snapshots = found[0]
    for other, others in found[1:]:
        assert [row["loss"] for row in other.run.steps] == pytest.approx([row["loss"] for row in first.run.steps], rel=1e-6)
        for one, two in zip(snapshots, others, strict=True):  # tensor by tensor, against its own size
            for mine, their in zip([*one.tensors, *one.gradients], [*two.tensors, *two.gradients], strict=True):
                assert (mine - their).norm() <= 1e-6 * mine.norm() + 1e-10
        for name, tensor in first.tensors.items():
            assert np.linalg.norm(tensor - other.tensors[name]) <= 1e-5 * np.linalg.norm(tensor)


def test_decay_and_clipping_are_taken_from_the_settings(recorded):
    # AdamW's steps do not depend on the gradient's scale, but for its epsilon, until the clipping changes from step to step
    assert train_reward(calm_pairs(), weight_decay=0.5).bytes() != recorded.bytes()
    clipped = train_reward(calm_pairs(), max_grad_norm=1e-3)
    assert clipped.bytes() != recorded.bytes()
    assert clipped.run.steps[0]["grad_norm"] == recorded.run.steps[0]["grad_norm"] > 1e-3


def test_a_loss_that_is_not_finite_stops_and_names_the_step_and_the_pair():
    model = runs.frozen_toy()
    reward_model = RewardModel.fresh(tiny.adapted(model), plan := runs.toy_plan(model), 42)
    with torch.no_grad():
        reward_model.head[0, 3] = float("nan")
    before = [tensor.detach().clone() for tensor in reward_model.trainable().values()]
    with pytest.raises(
        TrainingError, match=r"^epoch 1/3 step 1/6: the loss of training pair 1\d is not finite; no weight was moved; no step was taken yet"
    ):
        reward_loop.fit(reward_model, plan, runs.fitting_pairs(calm_pairs()), runs.reward_settings(), runs.Appended())
    after = list(reward_model.trainable().values())
    assert all(torch.equal(now.nan_to_num(-9), then.nan_to_num(-9)) for now, then in zip(after, before, strict=True))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_gradient_that_is_not_finite_stops_and_names_the_pair(monkeypatch, batch_size):
    pairs = calm_pairs()
    model = runs.frozen_toy()
    reward_model = RewardModel.fresh(tiny.adapted(model), plan := runs.toy_plan(model), 42)
    bad = shuffled(8, 42, 0)[2]
    scores = reward_model.scores

    def poisoning(groups):
        whole = [row for group in groups for row in group.rows()]
        return runs.poisoned(scores(groups), [row == pairs[bad].chosen for row in whole])

    monkeypatch.setattr(reward_model, "scores", poisoning)
    with pytest.raises(TrainingError) as stopped:
        reward_loop.fit(reward_model, plan, runs.fitting_pairs(pairs), runs.reward_settings(batch_size=batch_size), runs.Appended())
    assert str(stopped.value).startswith(
        f"epoch 1/3 step 1/6 training pair {10 + bad}: the gradient is not finite (nan); no weight was moved; "
    )
    assert reward_model.head.detach().abs().max() == 0


def test_a_side_counts_only_by_its_own_tokens():
    """The same pairs beside one that is much longer: padding changes no score."""
    model = runs.frozen_toy()
    adapted = tiny.adapted(model)
    reward_model = RewardModel.fresh(adapted, runs.toy_plan(model), 42)
    runs.warm(adapted, "reward")
    with torch.no_grad():
        reward_model.head.fill_(0.1)
        long = EncodedPair([0, *[5] * 60, 1], [0, 5, 1])
        rows = [side for pair in [*calm_pairs(3), long] for side in pair]
        together = reward_model.scores(tiny.whole(rows))
        alone = torch.stack([reward_model.scores(tiny.whole([row]))[0] for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)

"""Norms and cosines of adapter updates, against whole matrices that are formed one by one."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from stages.files.artifacts import HEAD, REWARD
from stages.versions import updates
from stages.versions.updates import Kept
from tests.versions.projects import MODULES, artifact, base, factors


def kept(**arguments: Any) -> Kept:
    return Kept(artifact(**arguments), f"{arguments}")


def whole(one: Kept, module: str) -> Any:
    """alpha / rank * B @ A in float64."""
    up, down = (one.artifact.tensors[f"base_model.model.{module}.lora_{side}.weight"].astype(np.float64) for side in "BA")
    return one.artifact.alpha / one.artifact.rank * up @ down


def cosine(a: Any, b: Any) -> float:
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("ranks", [(2, 2), (1, 3), (8, 2), (16, 16)])
def test_the_figures_of_a_module_are_those_of_the_whole_matrices(ranks: tuple[int, int]):
    a, b = kept(rank=ranks[0]), kept(rank=ranks[1], seed=1, alpha=3.0)
    change = updates.compare("policy", a, b)
    assert [one.name for one in change.updates] == MODULES
    for one in change.updates:
        left, right = whole(a, one.name), whole(b, one.name)
        assert one.norm_a == pytest.approx(np.linalg.norm(left))
        assert one.norm_b == pytest.approx(np.linalg.norm(right))
        assert one.relative_change == pytest.approx(np.linalg.norm(right - left) / np.linalg.norm(left))
        assert one.cosine == pytest.approx(cosine(left, right))
    left, right = (np.concatenate([whole(side, module).ravel() for module in MODULES]) for side in (a, b))
    assert change.whole.norm_a == pytest.approx(np.linalg.norm(left))
    assert change.whole.relative_change == pytest.approx(np.linalg.norm(right - left) / np.linalg.norm(left))
    assert change.whole.cosine == pytest.approx(cosine(left, right))
    assert (change.scale_a, change.scale_b) == (4 / ranks[0], 3 / ranks[1])
    assert not change.identical


def test_the_figures_of_a_tensor_are_those_of_its_numbers():
    a, b = kept(kind=REWARD), kept(kind=REWARD, seed=5)
    change = updates.compare("reward", a, b)
    assert {one.name for one in change.tensors} == set(a.artifact.tensors)
    assert len(change.tensors) == 17
    for one in change.tensors:
        left, right = (side.artifact.tensors[one.name].astype(np.float64) for side in (a, b))
        assert one.norm_a == pytest.approx(np.linalg.norm(left))
        assert one.relative_change == pytest.approx(np.linalg.norm(right - left) / np.linalg.norm(left))
        assert one.cosine == pytest.approx(cosine(left, right))
    assert HEAD in {one.name for one in change.tensors}


def test_equal_artifacts_are_identical_and_their_change_is_exactly_nothing():
    change = updates.compare("policy", kept(), kept())
    assert change.identical
    assert {one.relative_change for one in (change.whole, *change.updates, *change.tensors)} == {0.0}
    assert all(one.cosine == pytest.approx(1) for one in (change.whole, *change.updates, *change.tensors))


def test_tensors_that_are_zero_on_both_sides_do_not_differ_and_from_zero_there_is_no_relative_change():
    nothing, something = ({name: scale * tensor for name, tensor in artifact().tensors.items()} for scale in (0.0, 1.0))
    both = [Kept(dataclasses.replace(artifact(), tensors=tensors), "x") for tensors in (nothing, something)]
    assert {one.relative_change for one in updates.compare("policy", both[0], both[0]).tensors} == {0.0}
    assert {one.relative_change for one in updates.compare("policy", *both).tensors} == {None}


def test_another_scale_of_the_same_weights_is_another_update():
    change = updates.compare("policy", kept(), Kept(artifact(alpha=8.0), kept().weights_sha256))
    assert not change.identical
    assert change.whole.relative_change == pytest.approx(1)  # twice the update: the change is as large as it was
    assert change.whole.cosine == pytest.approx(1)


def test_a_change_of_a_part_in_ten_million_is_not_lost_to_rounding():
    """A difference of squared norms would be: it is one part in 10**14."""
    a = kept()
    name = f"base_model.model.{MODULES[0]}.lora_B.weight"
    nudged = a.artifact.tensors[name].copy()
    nudged[0, 0] = np.nextafter(nudged[0, 0], np.float32(9))
    b = Kept(dataclasses.replace(a.artifact, tensors={**a.artifact.tensors, name: nudged}), "other")
    left, right = whole(a, MODULES[0]), whole(b, MODULES[0])
    found = updates.compare("policy", a, b).updates[0].relative_change
    assert 0 < found < 1e-6
    assert found == pytest.approx(np.linalg.norm(right - left) / np.linalg.norm(left), rel=1e-5)


def test_an_update_of_zero_has_neither_a_cosine_nor_a_relative_change():
    fresh = {name: tensor * ("lora_A" in name) for name, tensor in factors(MODULES, 2, 0).items()}
    change = updates.compare("policy", kept(tensors=fresh), kept(seed=1))
    assert {(one.norm_a, one.relative_change, one.cosine) for one in change.updates} == {(0.0, None, None)}
    assert change.whole.norm_b > 0
    assert (change.whole.relative_change, change.whole.cosine) == (None, None)


def test_a_module_on_one_side_alone_has_the_norm_of_that_side():
    change = updates.compare("policy", kept(modules=MODULES[:3]), kept(modules=MODULES[2:4], seed=1))
    assert [one.name for one in change.updates] == MODULES[:4]
    present = [(one.norm_a is not None, one.norm_b is not None, one.cosine is not None) for one in change.updates]
    assert present == [(True, False, False), (True, False, False), (True, True, True), (False, True, False)]
    left, right = kept(modules=MODULES[:3]), kept(modules=MODULES[2:4], seed=1)
    gap = [np.linalg.norm(whole(left, module)) for module in MODULES[:2]]
    gap += [np.linalg.norm(whole(right, MODULES[2]) - whole(left, MODULES[2])), np.linalg.norm(whole(right, MODULES[3]))]
    assert change.whole.relative_change == pytest.approx(math.hypot(*gap) / change.whole.norm_a)


def test_factors_of_another_rank_or_width_are_not_compared_number_by_number():
    change = updates.compare("policy", kept(rank=2), kept(rank=3))
    assert {(one.relative_change, one.cosine) for one in change.tensors} == {(None, None)}
    assert all(one.norm_a and one.norm_b for one in change.tensors)
    wider = kept(tensors=factors(MODULES, 2, 0, width=9), hidden_size=9)
    change = updates.compare("policy", kept(), wider)
    assert {(one.relative_change, one.cosine) for one in (change.whole, *change.updates)} == {(None, None)}
    assert change.whole.norm_a == pytest.approx(updates.compare("policy", kept(), kept()).whole.norm_a)


def test_numbers_that_overflow_are_null():
    change = updates.compare("policy", kept(), kept(alpha=1e308))
    assert (change.whole.norm_b, change.whole.relative_change, change.whole.cosine) == (None, None, None)


def test_bases_are_told_apart_by_fingerprint():
    other = artifact(base_fingerprint=base(weights_sha256="v").fingerprint)
    assert not updates.compare("policy", kept(), Kept(other, "x")).same_base
    assert not updates.same(Kept(artifact(), "x"), Kept(other, "x"))
    assert updates.same(Kept(artifact(), "x"), Kept(artifact(), "x"))


def test_layers_are_in_the_order_of_their_numbers():
    modules = [f"model.layers.{layer}.mlp" for layer in (2, 10, 1)]
    change = updates.compare("policy", kept(modules=modules), kept(modules=modules))
    assert [one.name for one in change.updates] == [f"model.layers.{layer}.mlp" for layer in (1, 2, 10)]

"""Several processes of one training: the same draws, losses and adapters as of one, whatever their shares."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.learning.ranks import ALONE, GradientSum, Ranks
from tests.conftest import ROOT
from tests.learning import rank_runs


@pytest.fixture(scope="module", params=[2, 3])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what so many processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={request.param}",
        "-m",
        "tests.learning.rank_runs",
        str(folder),
    ]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return {name: case(ALONE) for name, case in rank_runs.CASES.items()}


def found(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "found.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", rank_runs.CASES)
def test_several_processes_end_with_the_bytes_of_one(several: Path, alone: dict[str, Any], name: str):
    with np.load(several / f"{name}.npz") as tensors:
        assert {key: tensors[key].tobytes() for key in tensors} == alone[name].bytes()
    found = json.loads((several / f"{name}.json").read_text())
    found.pop("idle")
    assert found == json.loads(json.dumps(rank_runs.result(alone[name])))


@pytest.mark.slow
def test_processes_without_work_are_told_of(several: Path):
    idle = {name: json.loads((several / f"{name}.json").read_text())["idle"] for name in rank_runs.CASES}
    size = len(found(several)["initial"])
    wait = f"runtime.processes: a window makes 1 pass, so {size - 1} of {size} processes wait; "
    assert idle["one prompt"] == [wait + "raise grpo.accumulation, or train in fewer"]
    assert idle["one batch"] == idle["one pair"] == [wait + "lower reward.batch_size, or raise reward.accumulation"]
    assert idle["policy"] == idle["reward"] == []


@pytest.mark.slow
def test_the_cases_have_what_their_names_say(alone: dict[str, Any]):
    assert 0 < alone["refused groups"].run.refused_groups < 18
    assert any(len(trained.run.steps) > 3 for trained in alone.values())
    assert all(np.abs(tensor).max() > 0 for trained in alone.values() for tensor in trained.tensors.values())


@pytest.mark.slow
def test_every_process_starts_with_the_same_adapter(several: Path):
    first, *others = found(several)["initial"]
    assert np.abs(first).max() > 0
    assert all(other == first for other in others)


@pytest.mark.slow
def test_processes_draw_different_completions_of_equal_prompts(several: Path):
    parts = found(several)["drawn"]
    groups = [group for part in parts for group in part]
    assert len(groups) == 4
    assert all(one != other for place, one in enumerate(groups) for other in groups[:place])
    assert groups == rank_runs.drawn(ALONE)[0]


@pytest.mark.slow
def test_a_refusal_in_one_process_is_raised_in_all(several: Path):
    assert found(several)["refusals"] == ["the first problem", "the second"]


@pytest.mark.slow
def test_short_completions_here_and_long_ones_there_give_the_gradient_of_both_together(several: Path):
    expected = rank_runs.short_and_long(ALONE)
    with np.load(several / "short and long.npz") as tensors:
        assert {key: tensors[key].tobytes() for key in tensors} == expected.bytes()


@pytest.mark.slow
def test_a_base_spread_over_the_processes_gives_the_adapters_of_a_whole_one(several: Path):
    parts = found(several)["sharded"]
    expected = rank_runs.sharded(ALONE)
    for name, whole in expected.items():
        assert whole.pop("held") == 1
        shares = [part[name].pop("held") for part in parts]
        assert max(shares) < 1.2 / len(parts)
        assert all(part[name] == parts[0][name] for part in parts)
        for key, value in whole.items():
            np.testing.assert_allclose(parts[0][name][key], value, atol=1e-5, err_msg=key)


@pytest.mark.slow
def test_gradients_are_summed_without_rounding(several: Path):
    """2**-25 + 1 - 1 + 0.25: in float32 the first would be lost before the others cancel."""
    assert found(several)["gradients"] == [0.25 + 2**-25] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8])
def test_shares_are_neighbours_that_cover_all_once_and_differ_by_one_at_most(size: int, count: int):
    shares = [Ranks(rank, size).share(count) for rank in range(size)]
    assert [place for share in shares for place in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_gradients_of_passes_are_added_up_and_a_parameter_without_one_counts_as_zero():
    one, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    total = GradientSum([one, other], ALONE)
    for value in (2**-25, 1.0, -1.0):
        one.grad = torch.full((2,), value)
        total.add()
        assert one.grad is None
    total.finish()
    assert one.grad is not None
    assert one.grad.tolist() == [2**-25] * 2
    assert other.grad is not None
    assert other.grad.tolist() == [0, 0]
    total.finish()  # nothing was added since
    assert one.grad.tolist() == [0, 0]

"""What the benchmarks count and time; the peers themselves are not run here."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from stages.model.adapters import Adapters
from tests import tiny
from tests.bench import bench, floor, jobs, ours, processes
from tests.bench.floor import Shape

PROMPT, GROUP, NEW = 12, 3, 5


def test_the_floor_is_the_products_of_the_live_tokens_and_no_others():
    model = tiny.model()
    text = model.config
    hidden, vocabulary, layers, heads, width = 32, tiny.VOCABULARY, text.num_hidden_layers, text.num_attention_heads, text.head_dim
    inside = sum(one.weight.numel() for name, one in model.named_modules() if name.endswith("_proj"))
    row, predicted = PROMPT + GROUP * NEW, 1 + GROUP * (NEW - 1)
    # a causal block is timed as the rectangle of the same number of pairs
    prompt_pairs = PROMPT * ((PROMPT + 1) // 2)
    pairs = prompt_pairs + GROUP * NEW * PROMPT + GROUP * NEW * ((NEW + 1) // 2)

    def scored(count: int) -> int:
        return count * heads * width * layers * 2  # scores, and the mixing of values

    forward = row * inside + predicted * hidden * vocabulary + scored(pairs)
    backward = row * inside + predicted * hidden * vocabulary + 2 * scored(pairs)
    prefill = PROMPT * inside + hidden * vocabulary + scored(prompt_pairs)
    decode = sum(GROUP * (inside + hidden * vocabulary) + scored(GROUP * (PROMPT + place)) for place in range(1, NEW))
    with FlopCounterMode(display=False) as counted:
        floor.measure(model, Shape(PROMPT, GROUP, NEW))
    assert counted.get_total_flops() == 2 * (prefill + decode + 2 * forward + backward)


def test_prompts_have_just_the_tokens_that_are_asked_for_and_none_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = tmp_path / "text"
    text.write_text(" ".join(tiny.WORDS * 20))
    monkeypatch.setattr(jobs, "TEXT", text)
    tokenizer = tiny.tokenizer()
    found = jobs.prompts(tokenizer, 9, 3)
    assert [len(tokenizer(one).input_ids) for one in found] == [9, 9, 9]
    assert len(set(found)) == 3
    with pytest.raises(ValueError, match="has no 3 texts of 100000 tokens"):
        jobs.prompts(tokenizer, 100_000, 3)


def test_medians_leave_out_the_step_that_warms_up_and_pair_each_step_with_its_floor():
    runs: list[dict[str, Any] | None] = [
        {"step_seconds": [99.0, 2.0, 4.0], "floor_seconds": [9.0, 1.0, 3.0], "peak_gigabytes": 1.0},
        {"step_seconds": [99.0, 3.0, 3.0], "floor_seconds": [9.0, 2.0, 2.0], "peak_gigabytes": 2.0},
        None,
    ]
    assert bench.measured(runs) == bench.Measured(3.0, 1.5)
    assert list(bench.steps_and_floors(runs[0])) == [(2.0, 1.0), (4.0, 3.0)]


@pytest.mark.parametrize("text", ["1,2", "1,2,3,4", "a,b,c", ""])
def test_a_shape_that_is_none_is_refused_in_one_line(text: str):
    assert bench.shape("200,8,48") == (200, 8, 48)
    with pytest.raises(argparse.ArgumentTypeError, match="is not prompt,group,new tokens, as 200,8,48"):
        bench.shape(text)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_job_runs_in_a_process_of_its_own_with_its_threads_pinned(tmp_path: Path):
    code = (
        "import json, os, sys; print('noise'); print(json.dumps([os.environ['OMP_NUM_THREADS'], json.load(open(sys.argv[1]))['threads']]))"
    )
    assert processes.process(python(code), {"threads": 3}, tmp_path) == ["3", 3]


def test_a_process_that_fails_ends_the_benchmark_with_what_it_said(tmp_path: Path):
    with pytest.raises(SystemExit, match="no such thing"):
        processes.process(python("raise SystemExit('no such thing')"), {"threads": 1}, tmp_path)


def test_a_process_that_takes_too_much_memory_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "total_memory", lambda: 100 * 2**20)
    assert processes.process(python("held = bytearray(200 * 2**20); import time; time.sleep(60)"), {"threads": 1}, tmp_path) is None


def small_job(folder: Path) -> dict[str, Any]:
    return {
        "checkpoint": str(tiny.save(folder / "base")),
        "prompts": ["red green blue", "cup plate"],
        "group": 4,
        "new_tokens": 6,
        "steps": 2,
        "threads": 1,
        "temperature": 0.9,
        "top_p": 0.95,
        "beta": 0.04,
        "learning_rate": 1e-3,
        "end_token": None,
        "floor": True,
    }


def test_our_side_of_a_job_gives_its_figures(tmp_path: Path):
    job = small_job(tmp_path)
    found = processes.ours(job, tmp_path)
    assert found is not None
    assert len(found["step_seconds"]) == len(found["floor_seconds"]) == 2
    assert 0 < sum(found["step_seconds"]) <= found["train_seconds"]
    assert 0.05 < found["peak_gigabytes"] < 4
    assert json.loads((tmp_path / "job.json").read_text())["group"] == 4


def test_the_time_of_our_loop_begins_when_the_adapters_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put_in = Adapters.add_fresh

    def slowly(*arguments: Any) -> Any:
        time.sleep(3)
        return put_in(*arguments)

    monkeypatch.setattr(Adapters, "add_fresh", slowly)
    found = ours.grpo(small_job(tmp_path) | {"floor": False}, tiny.model(), tiny.RUNTIME)
    assert found["train_seconds"] < 3

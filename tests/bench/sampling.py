"""`make bench-sampling`: tokens a second of our sampling beside vLLM's CPU build, one process after the other.

python -m tests.bench.sampling VLLM_PYTHON [--groups 8 32] [--repeats N] [--threads N]

As the job in ours, a fresh adapter is on, unmerged; vLLM runs the base alone.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from transformers import AutoTokenizer

from tests.bench import bench, jobs, processes
from tests.bench.processes import tell

PROMPT, NEW_TOKENS, ROUNDS = 200, 48, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vllm", type=Path, help="the Python of vLLM's environment")
    parser.add_argument("--groups", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = bench.smollm2(Path(scratch) / "checkpoint")
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        ids = [tokenizer(text).input_ids for text in jobs.prompts(tokenizer, PROMPT, ROUNDS)]
        print(f"{given.threads} thread(s), float32, SmolLM2-135M-Instruct, {bench.machine()}; prompt {PROMPT}, {NEW_TOKENS} new tokens\n")
        print("| group | vLLM tokens/s | ours tokens/s | share |\n|---|---|---|---|", flush=True)
        for group in given.groups:
            job = {
                "checkpoint": str(checkpoint),
                "prompt_ids": ids,
                "group": group,
                "new_tokens": NEW_TOKENS,
                "threads": given.threads,
                "temperature": 0.9,
                "top_p": 0.95,
            }
            rates: dict[str, list[float]] = {"vllm": [], "ours": []}
            for repeat in range(given.repeats):
                for side, command in (
                    ("vllm", [str(given.vllm), str(processes.HERE / "vllm_sampling.py")]),
                    ("ours", [sys.executable, "-m", "tests.bench.ours"]),
                ):
                    found = processes.process(command, job, Path(scratch))
                    assert found is not None, f"{side} does not fit"
                    # the first round warms up
                    rates[side] += [one["tokens"] / one["seconds"] for one in found["rounds"][1:]]
                    tell(f"group {group} repeat {repeat + 1}/{given.repeats} {side}: {found}")
            theirs, ours = median(rates["vllm"]), median(rates["ours"])
            print(f"| {group} | {theirs:.0f} | {ours:.0f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""The toy: our grpo stage beside TRL's script on the same checkpoint, six prompts, 18 steps; the loops alone and the whole processes.

So little is computed that what is measured is the cost of the code itself, and of its imports.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from stages.core import layout
from tests.bench import processes
from tests.bench.processes import ROOT, tell

PROMPTS_FILE = "data/examples/prompts.json"
PROMPTS, GROUP, NEW_TOKENS, ITERATIONS = 6, 4, 16, 3
SETTINGS = {
    "data.prompts": PROMPTS_FILE,
    "data.pairs": "data/examples/pairs.json",
    "data.heldout_fraction": 0,
    "grpo.reward": "length",
    "grpo.group": GROUP,
    "grpo.iterations": ITERATIONS,
    "grpo.accumulation": 1,
    "grpo.max_new_tokens": NEW_TOKENS,
    "grpo.empty_completions": "score",
    "grpo.temperature": 0.9,
    "grpo.top_p": 0.95,
    "grpo.beta": 0.04,
    "grpo.learning_rate": 0.005,
}
"""Of our stage; the loops take the same."""


def compare(trl: Path, scratch: Path, threads: int, repeats: int) -> None:
    """Prints the table."""
    project = scratch / "toy"
    for folder in ("conf", "data", "stages"):
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = {**SETTINGS, "runtime.threads": threads}
    stage(project, threads, "compose", *(f"{key}={value}" for key, value in settings.items()))
    for name in ("base", "validate"):
        stage(project, threads, name)
    job = {
        "checkpoint": str(project / layout.BASE_CHECKPOINT),
        "prompts": json.loads((ROOT / PROMPTS_FILE).read_text(encoding="utf-8"))["prompts"],
        "group": GROUP,
        "new_tokens": NEW_TOKENS,
        "steps": PROMPTS * ITERATIONS,
        "threads": threads,
        **{key: SETTINGS[f"grpo.{key}"] for key in ("temperature", "top_p", "beta", "learning_rate")},
        "end_token": None,
        "floor": False,
    }
    runs: dict[str, Callable[[], Any]] = {
        "our loop": lambda: processes.ours(job, scratch),
        "our stage": lambda: stage(project, threads, "grpo"),
        "TRL": lambda: processes.trl(trl, "trl_grpo.py", job, scratch),
    }
    loops: dict[str, list[float]] = {name: [] for name in runs}
    whole: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name, run in runs.items():
            begun = time.perf_counter()
            found = run()
            whole[name].append(time.perf_counter() - begun)
            if name != "our stage":
                loops[name].append(found["train_seconds"])
            loop = f", its loop {loops[name][-1]:.2f} s" if loops[name] else ""
            tell(f"toy threads {threads} repeat {repeat + 1}/{repeats} {name}: whole process {whole[name][-1]:.2f} s{loop}")
    ours_loop, train = median(loops["our loop"]), median(loops["TRL"])
    process, script = median(whole["our stage"]), median(whole["TRL"])
    print(f"\nThe toy, {PROMPTS} prompts, group {GROUP}, cap {NEW_TOKENS}, {job['steps']} steps:")
    print(f"TRL's train call takes {train:.2f} s, our loop {ours_loop:.2f} s, {train / ours_loop:.2f} times as fast;")
    print(
        f"TRL's script takes {script:.2f} s, our stage's whole process {process:.2f} s, {script / process:.2f} times as fast.", flush=True
    )


def stage(project: Path, threads: int, name: str, *arguments: str) -> None:
    """Runs a stage there, or exits with what it said."""
    environment = {**os.environ, **processes.environment(threads)}
    done = subprocess.run(
        [sys.executable, "-m", f"stages.{name}", *arguments],
        cwd=project,
        env={**environment, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")

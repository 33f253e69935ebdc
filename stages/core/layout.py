"""Where the pipeline's files lie, relative to the project's root; the same word names a stage everywhere."""

import os
from pathlib import Path

PIPELINE = Path("dvc.yaml")
LOCK = Path("dvc.lock")
DVC = Path(".dvc")
RWLOCK = DVC / "tmp" / "rwlock"
PARAMS = Path("params.yaml")
CONF = Path("conf")
OVERRIDES = CONF / "overrides.yaml"

DATA = Path("data")
REWARD_ARTIFACTS = DATA / "rewards"
INIT_ADAPTERS = DATA / "adapters"
REWARDS = Path("stages") / "rewards"
"""Reward functions, the user's among them."""
ARTIFACTS = Path("artifacts")
REPORTS = Path("reports")
STATE = Path(".state")
SWEEP_STATE = STATE / "sweep"

BASE = ARTIFACTS / "base"
BASE_RECORD = BASE / "base.json"
BASE_CHECKPOINT = BASE / "checkpoint"

VALIDATE = ARTIFACTS / "validate"
TRAIN_PROMPTS = VALIDATE / "prompts.train.jsonl"
HELDOUT_PROMPTS = VALIDATE / "prompts.heldout.jsonl"
TRAIN_PAIRS = VALIDATE / "pairs.train.jsonl"
HELDOUT_PAIRS = VALIDATE / "pairs.heldout.jsonl"

REWARD = ARTIFACTS / "reward" / "reward.safetensors"
POLICY = ARTIFACTS / "grpo" / "policy.safetensors"
SAMPLES = ARTIFACTS / "evaluate" / "samples.jsonl"
EVALUATION_PAGE = ARTIFACTS / "evaluate" / "report.html"
EXPORT = ARTIFACTS / "export"


def report(stage: str) -> Path:
    """The report of a stage: reports/<stage>.json."""
    return REPORTS / f"{stage}.json"


def curve(stage: str) -> Path:
    """The per-step table of a training stage: reports/plots/<stage>.csv."""
    return REPORTS / "plots" / f"{stage}.csv"


def saved_states(stage: str) -> Path:
    """Where a training stage saves its state as it goes, a folder per run: in the workspace that started it, which outlives a job's."""
    return outside((STATE / stage).as_posix())


def history(stage: str) -> Path:
    """Where a running stage appends its steps as it goes: .state/<stage>/history.jsonl."""
    return STATE / stage / "history.jsonl"


def outside(path: str) -> Path:
    """A path that settings name outside the project's own folders: a relative one counts from the workspace that started the run.

    A job of a sweep, or of `dvc exp run --temp`, runs in a checkout elsewhere; DVC_ROOT says where it was started.
    """
    started_in = os.environ.get("DVC_ROOT")
    elsewhere = started_in is not None and Path(started_in).resolve() != Path.cwd()
    return Path(started_in or "", path) if elsewhere else Path(path)

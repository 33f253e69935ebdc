"""How to bring back what DVC removed: it deletes a stage's outputs before it runs the stage.

What the DVC cache holds comes back with `dvc checkout`; reports (`cache: false`) are only in Git, where they were committed.
"""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stages.core.layout import LOCK, PIPELINE


class Output(NamedTuple):
    """An output that DVC removes before the stage runs."""

    path: str
    cached: bool


def advice(stage: str) -> list[str]:
    """One line with the commands that bring back the stage's earlier outputs; none where it has none that DVC removes."""
    made = {out["path"]: out.get("md5") for out in _entry(LOCK, stage).get("outs", [])}
    outputs = list(_outputs(_entry(PIPELINE, stage)))
    cached = [output.path for output in outputs if output.cached and output.path in made]
    reports = [output.path for output in outputs if not output.cached]
    committed = [path for path in reports if path in made and _in_git(path, made[path])]
    lost = [path for path in reports if path in made and path not in committed]
    if not (cached or committed or lost):
        return []
    commands = ["dvc checkout " + " ".join(cached)] * bool(cached) + ["git restore " + " ".join(committed)] * bool(committed)
    line = f"{PIPELINE}: DVC removed what {stage} had written before"
    if commands:
        line += f"; to bring it back: {' && '.join(commands)}"
    if lost:
        line += f"; not in Git as that run wrote it: {' '.join(lost)}: set back what changed and run dvc repro, which has it in its cache"
    return [line]


def _entry(path: Path, stage: str) -> dict[str, Any]:
    """What a DVC file says of the stage; nothing where it cannot be read, since the refusal itself matters more."""
    try:
        entry = yaml.safe_load(path.read_text("utf-8"))["stages"][stage]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _outputs(entry: dict[str, Any]) -> Iterator[Output]:
    for section in ("outs", "metrics", "plots"):
        for item in entry.get(section, []):
            for path, flags in item.items() if isinstance(item, dict) else [(item, {})]:
                if not (flags or {}).get("persist", False):
                    yield Output(path, (flags or {}).get("cache", True))


def _in_git(path: str, md5: str | None) -> bool:
    """Whether the last commit holds the file as the run wrote it, by the digest that dvc.lock keeps; an older one is another run's."""
    try:
        shown = subprocess.run(["git", "show", f"HEAD:./{path}"], capture_output=True, check=False)
    except OSError:  # no git here
        return False
    return shown.returncode == 0 and hashlib.md5(shown.stdout, usedforsecurity=False).hexdigest() == md5

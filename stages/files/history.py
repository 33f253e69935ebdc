"""The steps of a running stage, appended as they are taken, so that a run of hours can be watched."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.core import layout
from stages.core.progress import say


class HistoryFile:
    """`.state/<stage>/history.jsonl`: begun anew by each run, a line per step, flushed."""

    def __init__(self, stage: str) -> None:
        self.path: Path = layout.history(stage)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        say(f"steps are appended to {self.path}")

    def append(self, step: Mapping[str, Any]) -> None:
        """Adds one step."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(step) + "\n")

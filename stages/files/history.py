"""The steps of a running stage, appended as they are taken, so that a run of hours can be watched."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.core import layout, rank
from stages.core.progress import say
from stages.files import outputs


class HistoryFile:
    """`.state/<stage>/history.jsonl`: begun anew by each run, a line per step, flushed. Of several processes the first writes it."""

    def __init__(self, stage: str) -> None:
        self.path: Path = layout.history(stage)
        self.begin(())
        say(f"steps are appended to {self.path}")

    def begin(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Starts with the steps that a run that goes on has taken before."""
        outputs.write_jsonl(self.path, steps)

    def append(self, step: Mapping[str, Any]) -> None:
        """Adds one step."""
        if rank.number() == 0:
            try:
                with self.path.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(step) + "\n")
            except OSError as error:  # of a full disk the system names no file
                raise OSError(error.errno, error.strerror, str(self.path)) from error

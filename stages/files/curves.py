"""The per-step tables of a training, reports/plots/<stage>.csv, as they are read back."""

import csv

from stages.core import layout
from stages.core.errors import ArtifactError

Row = dict[str, float | None]


def read(stage: str, steps: object) -> list[Row]:
    """A row per optimizer step, null where a column has no value; raises ArtifactError where it is not there, or not of so many steps."""
    path = layout.curve(stage)
    again = f"run `dvc repro -f {stage}`"
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = [{key: float(value) if value else None for key, value in row.items()} for row in csv.DictReader(stream, strict=True)]
    except FileNotFoundError:
        raise ArtifactError(f"{path}: it is not there; {again}") from None
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise ArtifactError(f"{path}: not a table as the stage writes it ({error}); {again}") from error
    if len(rows) != steps or not rows or any("step" not in row or row["step"] is None for row in rows):
        raise ArtifactError(f"{path}: it has {len(rows)} steps, and the artifact was trained for {steps}; {again}")
    return rows

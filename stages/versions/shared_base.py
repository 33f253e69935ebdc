"""The one base checkpoint that both versions' adapters belong to, and where it lies for this comparison."""

import dataclasses
from pathlib import Path

from stages.core import layout
from stages.core.errors import BaseError
from stages.core.progress import say
from stages.files import base_record
from stages.files.base_record import BaseRecord
from stages.versions.snapshot import Snapshot


def find(a: BaseRecord, b: BaseRecord, snapshot: Snapshot) -> BaseRecord:
    """B's record, with the folder in which its checkpoint is to be had: the workspace's where it is the same, else B's own, fetched.

    Raises BaseError where A's base is another, MissingError where the checkpoint cannot be had.
    """
    if a.fingerprint != b.fingerprint:
        raise BaseError(
            f"--sample: A's base is {a.model} ({a.fingerprint[:12]}) and B's is {b.model} ({b.fingerprint[:12]}); "
            "both policies are sampled from one base: compare without --sample, or versions of the same base"
        )
    if b.folder is None or Path(b.folder) != layout.BASE_CHECKPOINT or _lies_here(b):
        return b
    say(f"fetching the base checkpoint of {snapshot.label}")
    return dataclasses.replace(b, folder=snapshot.output(layout.BASE_CHECKPOINT).as_posix())


def _lies_here(base: BaseRecord) -> bool:
    """Whether the workspace has this checkpoint where the pipeline puts it."""
    try:
        return layout.BASE_CHECKPOINT.is_dir() and base_record.read_base().fingerprint == base.fingerprint
    except BaseError:
        return False

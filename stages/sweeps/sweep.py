"""What the jobs of a sweep know of it: the commit that all of them run, and the process that they end with.

Hydra hands it to each, on whatever machine, in its environment (hydra.job.env_set).
"""

import json
import os
import secrets
import socket
from collections.abc import Sequence
from typing import NamedTuple

import psutil

VARIABLE = "LEASH_SWEEP"


class Sweep(NamedTuple):
    """A sweep that was started."""

    name: str
    """Of its own, by which it knows its jobs' records from those of others in one folder."""
    commit: str
    """The last one when it was started, whatever is committed while it runs."""
    keys: tuple[str, ...]
    """What the command line sets; the rest is as recorded."""
    machine: str
    process: int
    process_started: float
    """Seconds since the epoch; a process number is given again."""


def start(commit: str, keys: Sequence[str]) -> Sweep:
    """A sweep that this process runs."""
    process = psutil.Process()
    return Sweep(secrets.token_hex(8), commit, tuple(keys), socket.gethostname(), process.pid, process.create_time())


def override(sweep: Sweep) -> str:
    """The override that has Hydra hand it to each job."""
    text = json.dumps(sweep._asdict()).replace("\\", "\\\\").replace("'", "\\'")
    return f"+hydra.job.env_set.{VARIABLE}='{text}'"


def of_this_job() -> Sweep:
    """The sweep that the job which runs here belongs to."""
    fields = json.loads(os.environ[VARIABLE])
    return Sweep(**{**fields, "keys": tuple(fields["keys"])})

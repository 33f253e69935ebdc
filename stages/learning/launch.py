"""Runs a stage as several processes, through torchrun's own launcher (torch.distributed): `runtime.processes` on each of `runtime.nodes`.

The process that was asked to run the stage waits for them, ends them when it is stopped, and tells what any of them refused.
With one machine they meet on the loopback interface alone.
"""

import json
import logging
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from stages.core import layout, rank, stopping
from stages.core.errors import RanksError
from stages.core.progress import say
from stages.core.runner import Document
from stages.core.settings.runtime import Runtime
from stages.core.stopping import Stopped

LOOPBACK = "lo" if sys.platform.startswith("linux") else "lo0"
MEETING_SECONDS = 900
"""How long the machines wait for each other."""
SHUTDOWN_SECONDS = 30
"""How long a process that was told to end may take to save its state."""


def spread(stage: str, path: Path, runtime: Runtime, shares: bool = True) -> Document | None:
    """Has several processes run the stage, and gives what the first of them wrote: `path`, and the report.

    None where one process is to run it, and in each of the several. A stage whose work they cannot share (`shares`) is run
    by several only where the base is spread over them. Raises RanksError where one of them fails.
    """
    if rank.launched_by() is not None or runtime.processes * runtime.nodes == 1 or not (shares or runtime.shard):
        return None
    if runtime.rendezvous is not None:
        _require_address(runtime.rendezvous)
    with tempfile.TemporaryDirectory(prefix="leash-") as endings:
        _launch(stage, runtime, Path(endings))
    return Document(path, json.loads(layout.report(stage).read_bytes()))


def _require_address(endpoint: str) -> None:
    """Raises RanksError where the name of the machine that all of them meet at has no address here; torch would try it for minutes."""
    host, port = endpoint.rsplit(":", 1)
    try:
        socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise RanksError(
            f"runtime.rendezvous: {host} has no address here ({error.strerror}); expected the name or address of one of the machines, "
            "which all of them know"
        ) from None


def _launch(stage: str, runtime: Runtime, endings: Path) -> None:
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):  # each has a level of its own
            logging.getLogger(name).setLevel(logging.CRITICAL)  # or it would tell of signals beside the lines of the processes
    config = LaunchConfig(
        min_nodes=runtime.nodes,
        max_nodes=runtime.nodes,
        nproc_per_node=runtime.processes,
        run_id=f"leash-{stage}",
        rdzv_backend="c10d",
        rdzv_endpoint=runtime.rendezvous or "127.0.0.1:0",
        rdzv_configs={"timeout": MEETING_SECONDS, "read_timeout": MEETING_SECONDS},  # the second is how long the first machine may be late
        max_restarts=0,
        local_addr=None if runtime.rendezvous else "127.0.0.1",
        logs_specs=DefaultLogsSpecs(log_dir=str(endings / "logs")),
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    machines = f" on each of {runtime.nodes} machines, which meet at {runtime.rendezvous}" if runtime.rendezvous else ""
    say(f"starting {runtime.processes} process{'es' if runtime.processes > 1 else ''}{machines}")
    os.environ[rank.LAUNCHER], os.environ[rank.ENDINGS] = str(os.getpid()), str(endings)
    if runtime.rendezvous is None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    try:
        elastic_launch(config, sys.executable)("-m", f"stages.{stage}")
    except SignalException as error:
        stopping.listen(ending=True)
        stopped = Stopped(error.sigval)
        for note in _kept(endings):
            stopped.add_note(note)
        raise stopped from None
    except ChildFailedError as error:
        raise _failure(stage, error, runtime, endings) from None
    except (RendezvousError, OSError) as error:
        reason = str(error.__cause__ or error).split("\n")[0]
        raise RanksError(
            f"runtime.rendezvous: the processes did not meet at {config.rdzv_endpoint} ({reason}); "
            f"expected the stage to be run on each of {runtime.nodes} machines, with a port that all of them reach"
        ) from error
    else:
        stopping.listen()  # as before the launcher, which raises an exception of its own, had the signals
    finally:
        del os.environ[rank.LAUNCHER], os.environ[rank.ENDINGS]


def _failure(stage: str, error: ChildFailedError, runtime: Runtime, endings: Path) -> RanksError:
    """What the processes refused, each line once; where none did, which of them failed by itself, and how."""
    left = rank.endings(endings)
    refused = [ending for ending in left.values() if ending.kind == rank.REFUSED]
    if refused:
        told = RanksError(list(dict.fromkeys(line for ending in refused for line in ending.lines)))
        told.exit_code = refused[0].code
    else:
        alone = {number: failure for number, failure in error.failures.items() if number not in left}
        number, failure = next(iter(alone.items()), error.get_first_failure())
        code = failure.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        told = RanksError(f"{stage}: process {number} of {runtime.processes * runtime.nodes} {how}, and the others were ended with it")
    for note in _kept(endings):
        told.add_note(note)
    return told


def _kept(endings: Path) -> list[str]:
    """What the processes say of what they kept."""
    return list(dict.fromkeys(note for ending in rank.endings(endings).values() for note in ending.notes))

"""Each side's job in a process of its own, with its threads pinned, offline, and stopped where it would fill the machine's memory."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MEMORY_SHARE = 0.85
"""Of the machine's memory, what a side may take before it is stopped and said not to fit."""


def ours(job: dict[str, Any], scratch: Path) -> dict[str, Any] | None:
    return process([sys.executable, "-m", "tests.bench.ours"], job, scratch)


def trl(python: Path, script: str, job: dict[str, Any], scratch: Path) -> dict[str, Any] | None:
    return process([str(python), str(HERE / script)], job, scratch)


def environment(threads: int) -> dict[str, str]:
    """Pins the threads, and keeps libraries off the network."""
    pinned = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return {**pinned, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def process(command: list[str], job: dict[str, Any], scratch: Path) -> dict[str, Any] | None:
    """What a process says of a job on its last line of stdout; None where it was stopped for its memory."""
    path = scratch / "job.json"
    path.write_text(json.dumps({**job, "scratch": str(scratch / "trl")}), encoding="utf-8")
    out, log = scratch / "stdout", scratch / "stderr"
    variables = {**os.environ, **environment(job["threads"]), "PYTHONPATH": str(ROOT)}
    with out.open("wb") as stdout, log.open("wb") as stderr:
        started = subprocess.Popen([*command, str(path)], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=variables, cwd=ROOT)
        while started.poll() is None:
            time.sleep(0.05)
            if resident(started.pid) > MEMORY_SHARE * total_memory():
                started.kill()
                started.wait()
                return None
    if started.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text(encoding='utf-8')[-2000:]}")
    return json.loads(out.read_text(encoding="utf-8").splitlines()[-1])


def resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tell(line: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()

"""Section `runtime`: where and how a stage computes; no stage declares it, and it changes numbers by rounding alone."""

import re
from dataclasses import dataclass

from stages.core.settings.schema import at_least, between, setting

MOST_THREADS = 1024
MOST_PROCESSES = 4096
MOST_ROWS = 2**20


def _device(value: str) -> str | None:
    return None if re.fullmatch(r"cpu|cuda(:\d+)?", value) else "expected cpu, cuda, or one of several such as cuda:1"


def _endpoint(value: str) -> str | None:
    named = re.fullmatch(r"[^\s:/]+:(\d{1,5})|\[[0-9a-fA-F:]+\]:(\d{1,5})", value)
    port = int(named[1] or named[2]) if named else 0
    return None if 1 <= port <= 65535 else "expected host:port, such as 10.0.0.1:29500"


@dataclass(frozen=True)
class Runtime:
    """What every stage that computes reads."""

    device: str = setting(_device)
    """Torch device: cpu, cuda or cuda:0 (others lack the float64 that rewards and draws are held in)."""
    threads: int | None = setting(between(1, MOST_THREADS, "threads must be at least one, or null"))
    """CPU threads; null leaves torch's own choice."""
    logits_chunk: int = setting(between(1, MOST_ROWS, "logits_chunk must be at least one row"))
    """Rows of logits, each as long as the vocabulary, that are held at once in training and scoring."""
    activation_checkpointing: bool = setting()
    """Whether layers run again in the backward pass instead of keeping what they computed."""
    checkpoint_every: int = setting(at_least(1, "checkpoint_every must be at least one step"))
    """Optimizer steps of reward and grpo between two saved states; a run that is broken off goes on from the last one."""
    processes: int = setting(between(1, MOST_PROCESSES, "processes must be at least one"))
    """Processes on this machine that share reward and grpo; on GPUs, one for each."""
    nodes: int = setting(between(1, MOST_PROCESSES, "nodes must be at least one"))
    """Machines that share them, each with so many processes."""
    rendezvous: str | None = setting(_endpoint)
    """host:port at which the machines meet; null where there is one."""
    shard: bool = setting()
    """Whether the base's layers are spread over the processes, where it does not fit one device; spares memory, not time."""

    def conflicts(self) -> list[str]:
        """What is wrong with the settings taken together."""
        found = []
        if self.nodes > 1 and self.rendezvous is None:
            found.append(f"runtime.rendezvous: expected the host:port at which runtime.nodes={self.nodes} machines meet, found null")
        if self.nodes == 1 and self.rendezvous is not None:
            found.append(f"runtime.rendezvous: {self.rendezvous} is for several machines, and runtime.nodes is 1; set either")
        if self.shard and self.processes * self.nodes == 1:
            found.append("runtime.shard: one process has no other to spread the base over; set runtime.processes, or runtime.shard=false")
        if self.processes * self.nodes > 1 and ":" in self.device:
            found.append(f"runtime.device: {self.device} is one device, and several processes need one each; set cuda")
        return found

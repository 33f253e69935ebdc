"""The processes that share a training: each computes its share of a window's passes, gradients are summed once a step.

Every one of them holds the same adapters and takes the same step. A window is cut into the same passes however many there
are, so that what it gives does not depend on their number. A refusal in any is raised in all.
"""

import datetime
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stages.core import rank
from stages.core.errors import LeashError, RanksError
from stages.core.progress import say
from stages.core.settings.runtime import Runtime

T = TypeVar("T")

TIMEOUT = datetime.timedelta(hours=6)
"""How long one waits for the others: as long as the longest step may take. One whose process ends is noticed at once, by its
launcher; a machine that goes without a word, when this is over."""


@dataclass(frozen=True)
class Ranks:
    """`size` processes, of which this is number `rank`."""

    rank: int
    size: int
    alike: bool = False
    """Whether all compute the same instead of a share each: where each has but a part of the base's weights, none can go its own way."""

    def share(self, count: int) -> range:
        """Which of `count` things are this process's: neighbours, as many as any other has or one less or more."""
        if self.alike:
            return range(count)
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def say_idle(self, passes: int, remedy: str) -> None:
        """Tells where a window has fewer passes than there are processes, so that some of them wait for the others."""
        if passes < self.size and not self.alike:
            what = "1 pass" if passes == 1 else f"{passes} passes"
            say(f"runtime.processes: a window makes {what}, so {self.size - passes} of {self.size} processes wait; {remedy}")

    def gather(self, work: Callable[[], T]) -> list[T]:
        """What the work gave in each process, in the order of their numbers; the first refusal of any is raised in all.

        Where all compute the same, once.
        """
        if self.size == 1 or self.alike:
            return [work()]
        outcomes: list[Any] = [None] * self.size
        mine = _attempted(work)
        _waiting_for_others(lambda: dist.all_gather_object(outcomes, mine))
        return [_found(outcome) for outcome in outcomes]

    def first(self, work: Callable[[], T]) -> T:
        """What the work gives in the first process; it is not done in the others."""
        if self.size == 1:
            return work()
        outcomes: list[Any] = [_attempted(work) if self.rank == 0 else None]
        _waiting_for_others(lambda: dist.broadcast_object_list(outcomes))
        found: T = _found(outcomes[0])
        return found

    def copy_first(self, parameters: Iterable[nn.Parameter]) -> None:
        """Gives every process the first one's numbers: where their processors differ, the same step rounds differently."""
        if self.size == 1:
            return
        held = list(parameters)
        flat = torch.cat([one.detach().flatten() for one in held])
        _waiting_for_others(lambda: dist.broadcast(flat, 0))
        with torch.no_grad():
            for parameter, part in zip(held, flat.split([one.numel() for one in held]), strict=True):
                parameter.copy_(part.view_as(parameter))


class GradientSum:
    """A window's gradients, pass by pass, added up over passes and processes.

    In float64 the sum of a few float32 numbers is exact but for the rarest, so neither the order of the passes nor the number
    of processes changes it: rounding, which training blows up within some tens of steps, has no hold here.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
        self._parameters = list(parameters)
        self._ranks = ranks
        self._total: Tensor | None = None

    def add(self) -> None:
        """Takes what a backward pass left with the parameters."""
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients]).double()
        self._total = flat if self._total is None else self._total.add_(flat)
        self._clear()

    def finish(self) -> None:
        """Leaves with each parameter the sum over all passes of all processes; one that has made none counts as zero."""
        if self._total is None:
            self._clear()
            self.add()
        assert self._total is not None
        total = self._total
        if self._ranks.alike:  # the first one's, so that no process ever goes astray by a rounding of its own
            _waiting_for_others(lambda: dist.broadcast(total, 0))
        elif self._ranks.size > 1:
            _waiting_for_others(lambda: dist.all_reduce(total))
        for parameter, part in zip(self._parameters, total.split([one.numel() for one in self._parameters]), strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
        self._total = None

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


ALONE = Ranks(0, 1)


def join(runtime: Runtime) -> Ranks:
    """Meets the other processes of the stage, where it was launched as several; ALONE where it was not."""
    if rank.launched_by() is None:
        return ALONE
    backend = "gloo" if runtime.device == "cpu" else "cpu:gloo,cuda:nccl"
    _waiting_for_others(lambda: dist.init_process_group(backend, timeout=TIMEOUT))
    return Ranks(dist.get_rank(), dist.get_world_size(), runtime.shard)


def _attempted(work: Callable[[], T]) -> tuple[T | None, tuple[type[LeashError], tuple[str, ...]] | None]:
    """What the work gives, and the refusal that it ends with."""
    try:
        return work(), None
    except LeashError as error:
        return None, (_plain(type(error)), error.problems)


def _found(outcome: tuple[Any, tuple[type[LeashError], tuple[str, ...]] | None]) -> Any:
    found, refusal = outcome
    if refusal is not None:
        kind, problems = refusal
        raise kind(problems)
    return found


def _plain(kind: type[LeashError]) -> type[LeashError]:
    """The nearest class that is made of its problems alone, as the refusal is made anew in every process."""
    return next(one for one in kind.__mro__ if (issubclass(one, LeashError) and "__init__" not in vars(one)) or one is LeashError)


def _waiting_for_others(call: Callable[[], object]) -> None:
    try:
        call()
    except RuntimeError as error:  # torch raises it where a connection is lost
        reason = str(error).splitlines()[0][:120]
        raise RanksError(f"process {os.environ['RANK']}: another process that shares the stage is gone ({reason})") from error

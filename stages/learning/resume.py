"""Saving a training's state as it goes, and going on from the last one: the parameters, the optimizer's moments, the loop's progress.

A run that goes on ends with the same bytes as one that was never broken off.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from stages.core.progress import say
from stages.core.stopping import ends, undisturbed
from stages.files.states import State, StateFolder
from stages.learning.optimizer import Optimizer
from stages.learning.ranks import ALONE, Ranks

PARAMETER, OPTIMIZER, PROGRESS = "parameter:", "optimizer:", "progress:"
"""What the names of a state's tensors begin with."""


class Saving:
    """When and where a training saves: every so many steps, after the last one, and when it is broken off."""

    def __init__(self, folder: StateFolder | None, every: int, ranks: Ranks = ALONE) -> None:
        """`folder` is None where no state is saved; of several processes the first has it."""
        self.folder, self.every, self.ranks = folder, every, ranks

    def begin(
        self, parameters: Mapping[str, nn.Parameter], optimizer: Optimizer, planned_steps: int, resume: Callable[[State], None]
    ) -> "Keeper":
        """Brings back the last state, where there is one, with `resume` for the loop's own part, and gives what saves from then on."""
        keeper = Keeper(self, parameters, optimizer, planned_steps)
        state = self.ranks.first(lambda: self.folder.newest() if self.folder else None)
        if state is not None:
            keeper.restore(state)
            own = {name.removeprefix(PROGRESS): value for name, value in state.tensors.items() if name.startswith(PROGRESS)}
            resume(State(state.step, own, state.fields))
            at = min(state.step + 1, planned_steps)
            say(f"resuming at step {at}/{planned_steps}: the state after step {state.step} of a run that was broken off")
        return keeper


class Keeper:
    """Saves one training."""

    def __init__(self, saving: Saving, parameters: Mapping[str, nn.Parameter], optimizer: Optimizer, planned_steps: int) -> None:
        self._saving, self._parameters, self._optimizer, self._planned_steps = saving, parameters, optimizer, planned_steps
        self._saved = 0
        self._whole = True

    def restore(self, state: State) -> None:
        """Puts parameters and moments back, which are the same run's and so of the same shapes."""
        tensors = {name: torch.from_numpy(value).clone() for name, value in state.tensors.items()}
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                value = tensors[PARAMETER + name]
                assert value.shape == parameter.shape, f"{name} has shape {list(value.shape)}, expected {list(parameter.shape)}"
                parameter.copy_(value)
        self._optimizer.restore({name.removeprefix(OPTIMIZER): value for name, value in tensors.items() if name.startswith(OPTIMIZER)})
        self._saved = state.step

    @contextlib.contextmanager
    def step(self, whole: bool = True) -> Iterator[None]:
        """Around all that changes in a step, the optimizer's part and the loop's: a signal waits until it is taken.

        After one that is not `whole`, only more steps make a state that a run can go on from.
        """
        with undisturbed():
            self._whole = False
            yield
            self._whole = whole

    def saved_when_due(self, step: int, taken: int, progress: Callable[[], State]) -> None:
        """Saves after `step` steps, the last `taken` of which came together, if it is time."""
        if step // self._saving.every > (step - taken) // self._saving.every or step == self._planned_steps:
            self._save(progress())

    @contextlib.contextmanager
    def saved_when_broken_off(self, progress: Callable[[], State]) -> Iterator[None]:
        """Saves where the block ends before its time, by a signal, a refusal or a mistake: what is lost is the step under way.

        Steps that come together and were broken off between, or one half done, which only a mistake does, leave the state before
        them that was saved.
        """
        try:
            yield
        except BaseException as error:
            ends()  # where a process was lost, its launcher sends a signal that comes just now
            if self._saving.folder is not None:
                self._save_last(progress(), error)
                if self._saved:
                    error.add_note(f"the state after step {self._saved}/{self._planned_steps} is saved: the same run goes on from it")
            raise

    def _save_last(self, progress: State, error: BaseException) -> None:
        """Saves a training that ends with the error; that this fails too is a note beside it."""
        if not self._whole or progress.step == self._saved:
            return
        try:
            self._save(progress)
        except OSError as failure:
            if not isinstance(error, OSError) or error.filename != failure.filename:  # or the error says so itself
                error.add_note(f"the state after step {progress.step} could not be saved ({failure.filename}: {failure.strerror})")

    def _save(self, progress: State) -> None:
        """Writes the loop's progress with the parameters and the moments."""
        if self._saving.folder is None:
            return
        tensors: dict[str, Tensor] = {PARAMETER + name: value for name, value in self._parameters.items()}
        tensors |= {OPTIMIZER + name: value for name, value in self._optimizer.state().items()}
        arrays = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
        arrays |= {PROGRESS + name: value for name, value in progress.tensors.items()}
        self._saving.folder.write(State(progress.step, arrays, progress.fields))
        self._saved = progress.step


UNSAVED = Saving(None, 1)
"""For a training that saves nothing."""

"""A function of `stages/rewards/` as a reward: loaded by its file, called with what it declares, and what it gives is checked.

It is called for the completions of one prompt at a time, and once with none before training, so that it can refuse its arguments.
"""

import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from stages.core import layout, reward_functions
from stages.core.errors import RewardFunctionError
from stages.core.reward_functions import GIVEN
from stages.files.records import Prompt, as_json
from stages.learning.scores import Drawn, Rewards
from stages.model.rendering import Renderer


@dataclass(frozen=True)
class Function:
    """A reward function that was loaded."""

    name: str
    path: Path
    arguments: Mapping[str, Any]
    call: Callable[..., Any]

    def given(self, what: Mapping[str, Sequence[Any]], count: int) -> list[float | None]:
        """What it gives for `count` completions; raises RewardFunctionError where it fails, or gives anything but that many numbers."""
        declared = inspect.signature(self.call).parameters.values()
        any_name = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in declared)
        wanted = {key: value for key, value in what.items() if any_name or key in {one.name for one in declared}}
        try:
            found = self.call(**wanted, **self.arguments)
        except Exception as error:
            raise RewardFunctionError(f"{_line_of(error, self.path)}: {self.name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(found, list | tuple) or len(found) != count:
            there = f"{len(found)} of them" if isinstance(found, list | tuple) else f"a {type(found).__name__}"
            raise RewardFunctionError(f"{self.path}: {self.name} gave {there}, expected a list of {count} rewards, one for each completion")
        for place, value in enumerate(found):
            if value is not None and not _is_finite(value):
                raise RewardFunctionError(
                    f"{self.path}: {self.name} gave {value!r} for completion {place}, expected a finite number, or None to abstain"
                )
        return [None if value is None else float(value) for value in found]


@dataclass(frozen=True)
class FunctionPart:
    """A function with the rows and the texts that it is given."""

    function: Function
    rows: Sequence[Prompt]
    """Every row of the file that places count in."""
    renderer: Renderer

    def rewards(self, groups: Sequence[Drawn]) -> list[Rewards]:
        """Of several prompts' completions; raises RewardFunctionError."""
        return [self._of(group) for group in groups]

    def _of(self, group: Drawn) -> Rewards:
        row, count = self.rows[group.place], len(group.completions)
        texts = [self.renderer.text(completion.content) for completion in group.completions]
        tokens, ended = [one.content for one in group.completions], [one.ended for one in group.completions]
        values = ([as_json(row.prompt) for _ in texts], texts, tokens, ended, [dict(row.extra) for _ in texts])
        found = self.function.given(dict(zip(GIVEN, values, strict=True)), count)
        rated = torch.tensor([value is not None for value in found], dtype=torch.bool)
        return Rewards(torch.tensor([value or 0.0 for value in found], dtype=torch.float64), rated)


def load(name: str, arguments: Mapping[str, Any]) -> Function:
    """The function of this name, which takes these arguments: called once with no completion. Raises RewardFunctionError."""
    path = layout.REWARDS / f"{name}.py"
    if problems := reward_functions.problems(name, arguments):
        raise RewardFunctionError(problems)
    module_name = f"stages.rewards.{name}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # as any import does, for dataclasses and pickles in it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RewardFunctionError(f"{_line_of(error, path)}: it cannot be imported: {type(error).__name__}: {error}") from error
    function = Function(name, path, arguments, getattr(module, name))
    function.given({key: [] for key in GIVEN}, 0)
    return function


def _is_finite(value: object) -> bool:
    """Whether it is a number, of Python or of numpy, that float64 can hold."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def _line_of(error: BaseException, path: Path) -> str:
    """The last place in the function's own file that the error came through: path:line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).resolve() == path.resolve()]
    return f"{path}:{lines[-1]}" if lines else f"{path}"

"""What a run can refuse, one class per cause that a caller may catch."""

import re
from collections.abc import Sequence

SHOWN = 20
"""How many problems of one input are written out; the rest are counted."""


_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What would break a line, or speak to the terminal."""


class LeashError(Exception):
    """Anything that the pipeline refuses. Each problem is one line: where, what was found, what was expected, what to do."""

    exit_code = 1

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """The problems as lines without line breaks of their own: the first 20, then a count of the rest."""
        shown = [_UNSEEN.sub(_escaped, problem.replace("\n", " ")) for problem in self.problems[:SHOWN]]
        rest = len(self.problems) - len(shown)
        return [*shown, f"... and {rest} more problems"] if rest else shown


class SettingsError(LeashError):
    """Settings that cannot run, or a named file that is not there: change the key that the line starts with."""

    exit_code = 2


class DataError(LeashError):
    """A prompts or pairs file that cannot be used as it is: mend the line that is named."""


class BaseError(LeashError):
    """A base checkpoint that cannot be loaded, or is not the one recorded: see the line for which and why."""


class ArtifactError(LeashError):
    """An adapter or reward artifact that is damaged, of another kind, or trained for another base."""


class DeviceError(LeashError):
    """A device that this machine does not have: set runtime.device to one that it has."""


class TrainingError(LeashError):
    """A run that cannot start or go on: nothing to train on, no room for the warm-up, a number that is not finite."""


class RewardFunctionError(LeashError):
    """A function in stages/rewards/ that cannot be called, fails, or gives something other than rewards: mend it at the line named."""


class BusyError(LeashError):
    """Another process runs the same in this folder: wait for it to end, or end it."""


class RanksError(LeashError):
    """One of the processes that share a stage has ended: the lines of that one say why."""


def _escaped(character: re.Match[str]) -> str:
    return ascii(character[0])[1:-1]

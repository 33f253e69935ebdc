"""What is seen to before a sweep starts: its command line, that jobs would run what is there, and that every job's settings are right.

A job runs the last commit, so what is not committed would be left out of it without a word; and a wrong setting is told of
now, not after hours of other jobs.
"""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from stages.core import layout, restore
from stages.core.composition import overrides, tree
from stages.core.errors import SettingsError
from stages.core.progress import bar
from stages.core.settings.schema import show
from stages.versions.git import git

RUN_FROM = ("conf", "stages", "data", "dvc.yaml")
"""What a job takes from the commit; lock and reports it writes itself, so those may differ."""


class CommandLine(NamedTuple):
    """A sweep's command line as Hydra is to get it."""

    flags: list[str]
    """Hydra's own options."""
    overrides: list[str]
    """The recorded overrides first, then those that were given."""


def read(arguments: Sequence[str], recorded: Sequence[str]) -> CommandLine:
    """Sorts the arguments, with the recorded overrides that they do not replace before them; raises SettingsError."""
    parsed, unknown = get_args_parser().parse_known_args(list(arguments))
    if unknown:
        raise SettingsError(f"{unknown[0]}: neither an option of Hydra's nor KEY=VALUES; python -m stages.sweep --help tells of both")
    given = list(parsed.overrides)
    flags = [argument for argument in arguments if argument not in given]
    keys = {overrides.key_of(text) for text in given}
    kept = [f"++{text}" if "." in overrides.key_of(text) else text for text in recorded if overrides.key_of(text) not in keys]
    return CommandLine(flags, [*kept, *given])


def require_committed() -> None:
    """Raises SettingsError where something that a job would run is not committed, or there is no commit at all."""
    if not git("rev-parse", "--quiet", "--verify", "HEAD", check=False):
        raise SettingsError(f"{restore.PIPELINE}: a sweep's jobs run the last commit, and there is none here; commit the project first")
    changed = git("status", "--porcelain", "--", *RUN_FROM).splitlines()
    if changed:
        paths = [shlex.quote(line[3:]) for line in changed]
        listed = " ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        raise SettingsError(
            f"{paths[0]}: a sweep's jobs run the last commit, and what differs from it would be left out of them: {listed}; "
            "commit it (git add, git commit), or take it back (git stash), and run the sweep again"
        )


def require_runnable(texts: Sequence[str]) -> None:
    """Raises SettingsError with everything that is wrong with any job's settings, each problem once.

    A range that a sweeper of another kind searches is tried at both of its ends.
    """
    try:
        parsed = [override for override in map(OverridesParser.create().parse_override, texts) if not _is_hydras(override)]
        jobs = BasicSweeper.split_arguments([_ends(override) for override in parsed], None)[0]
    except (HydraException, ValueError) as error:
        raise SettingsError(f"{' '.join(map(shlex.quote, texts))}: {' '.join(str(error).split())}") from error
    problems: dict[str, None] = {}
    with bar(len(jobs), "checking") as advance:
        for job in jobs:
            read = overrides.parse(job)
            try:
                tree.composed(layout.CONF, [override.text for override in read.overrides], read.problems)
            except SettingsError as error:
                problems |= dict.fromkeys(error.problems)
            advance()
    if problems:
        raise SettingsError(list(problems))


def _is_hydras(override: Override) -> bool:
    return override.key_or_group.split(".")[0].split("/")[0] == tree.HYDRA


def _ends(override: Override) -> Override:
    """The override, with the two ends of an interval in its place."""
    if not override.is_sweep_override() or override.is_discrete_sweep():
        return override
    interval = override.value()
    low, high = getattr(interval, "start", None), getattr(interval, "end", None)
    if low is None or high is None:
        raise SettingsError(f"{override.key_or_group}: choices, a range or an interval is expected, found {show(override.input_line)}")
    return OverridesParser.create().parse_override(f"{override.get_key_element()}={low},{high}")

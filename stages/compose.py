"""Stage compose: conf/ and the overrides in force become params.yaml, or everything that is wrong with them is listed.

usage    python -m stages.compose [KEY=VALUE ...] [--drop KEY ...] [--reset]
         KEY=VALUE records an override, GROUP=OPTION a choice; --drop takes overrides back, --reset all of them
reads    conf/ with conf/overrides.yaml; which files data, grpo.reward and base.model name, not what is in them
writes   params.yaml, and conf/overrides.yaml where the call changes it
refuses  settings that are missing, unknown, mistyped or out of range; files that are not there or cannot be tracked; without
         arguments, a params.yaml that was edited after it was composed. A refused call writes neither file
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stages.core import layout, runner
from stages.core.atomic import write_bytes
from stages.core.composition import overrides, params_yaml, tree
from stages.core.errors import SettingsError
from stages.core.locks import held
from stages.core.progress import say

LOCK = layout.STATE / "compose.lock"


class Request(NamedTuple):
    """What one call asks for: overrides to record, keys to drop, or to start from none."""

    added: list[str]
    dropped: list[str]
    reset: bool


def main(request: Request) -> runner.Document:
    """Composes what the request asks for on top of what is recorded, writes it where it may run, and tells what changed.

    One at a time: a second call waits, so that neither loses what the other recorded.
    """
    with held(LOCK):
        return _composed(request)


def _composed(request: Request) -> runner.Document:
    recorded = [] if request.reset else overrides.recorded(layout.OVERRIDES)
    added = overrides.parse(request.added)
    active = overrides.merge(overrides.drop(recorded, request.dropped), added.overrides)
    values = tree.composed(layout.CONF, active, added.problems)
    say(f"overrides: {' '.join(active) or 'none'}")
    before = params_yaml.read(layout.PARAMS)
    after = params_yaml.flatten(values)
    if isinstance(before, params_yaml.Unusable):
        say(f"{before.why}: composed anew")
        changed = {}
    else:
        changed = params_yaml.changes(before.flat, after)
        if changed and not before.untouched and not any(request):
            raise params_yaml.edited(layout.PARAMS, before, after)
    if request.reset or active != recorded:
        _write(layout.OVERRIDES, overrides.render(active))
    _write(layout.PARAMS, params_yaml.render(values))
    return runner.Document(layout.PARAMS, {"overrides": active, "changed": changed})


def read_arguments(arguments: Sequence[str]) -> Request:
    """The request in the command line; raises SettingsError for one that makes no sense."""
    request = Request([], [], "--reset" in arguments)
    dropping = False
    for argument in arguments:
        if argument == "--drop":
            dropping = True
        elif argument == "--reset":
            dropping = False
        elif argument.startswith("-"):
            raise SettingsError(f"{argument}: expected KEY=VALUE, --drop KEY or --reset")
        elif dropping and "=" in argument:
            raise SettingsError(f"{argument}: --drop takes keys; an override to record comes before it")
        else:
            (request.dropped if dropping else request.added).append(argument)
    if dropping and not request.dropped:
        raise SettingsError("--drop: expected a key after it")
    if request.reset and request.dropped:
        raise SettingsError("--reset: drops every override, so there is none left to --drop")
    return request


def _write(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        write_bytes(path, content)


if __name__ == "__main__":
    if sys.argv[1:] in (["--help"], ["-h"]):
        runner.print_help(main)
    runner.execute("compose", lambda: main(read_arguments(sys.argv[1:])))

"""Two versions of the project side by side: settings, metrics, adapters by tensor, data rows, and what the policies write.

usage    python -m stages.compare A [B] [--json] [--html FILE] [--sample N]
         A and B are commits, tags, branches or experiments; `workspace`, which B is unless it is given, is the files as they are
         --json prints one JSON document; --html writes one page that needs nothing else; --sample draws N new completions
         of every held-out prompt from both policies, the same draws for both, scored by B's reward model, and A's where it is another
reads    what Git has of either version, and its outputs from the workspace, DVC's cache or a remote; checks nothing out
writes   nothing, or the page
refuses  names of nothing, and versions without this pipeline. What cannot be had of a version is named, and the rest compared
"""

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stages.core import layout, runner
from stages.core import params as params_file
from stages.core.atomic import write_bytes
from stages.core.errors import ArtifactError, SettingsError
from stages.core.progress import say
from stages.core.settings.evaluate import Evaluate
from stages.core.settings.runtime import Runtime
from stages.files import artifacts, records
from stages.learning.metrics import bootstrap_mean
from stages.versions import comparison, comparison_html, comparison_text, completions, shared_base, snapshot, updates
from stages.versions.comparison import Version
from stages.versions.comparison_text import Page
from stages.versions.completions import Heldout
from stages.versions.revision import WORKSPACE, resolve
from stages.versions.snapshot import MissingError, Snapshot

MOST_SAMPLES = 1000
PAGES = (".html", ".htm")
KEPT = (layout.ARTIFACTS, layout.REPORTS, layout.CONF, layout.DATA, Path("stages"))
"""Folders that a page does not belong into."""


class Request(NamedTuple):
    """What one call asks for."""

    a: str
    b: str
    json: bool
    html: Path | None
    samples: int | None


@dataclass(frozen=True)
class Evaluated:
    """The section of B's settings that new completions are drawn by."""

    evaluate: Evaluate


@dataclass(frozen=True)
class Computed:
    """The section of the workspace's settings that says where and how."""

    runtime: Runtime


def main(request: Request, page: Page = comparison_text.PLAIN) -> str:
    """Compares, writes the page where one is asked for, and returns what is to be printed."""
    with snapshot.opened(resolve(request.a)) as a, snapshot.opened(resolve(request.b)) as b:
        versions = comparison.read(a), comparison.read(b)
        compared = comparison.compare(*versions, bootstrap_mean)
        if compared.is_void():
            raise MissingError(compared.unavailable)
        if request.samples is not None:
            compared = dataclasses.replace(compared, fresh=sampled(*versions, b, request.samples))
    if request.html is not None:
        write_bytes(request.html, comparison_html.render(compared))
        say(f"wrote {request.html}")
    return runner.as_json(compared.as_json()) if request.json else comparison_text.render(compared, page)


def sampled(a: Version, b: Version, snapshot_b: Snapshot, samples: int) -> list[Heldout]:
    """New completions of B's held-out prompts from both policies side by side, once for each reward model that scores them."""
    policies = {"policy of A": a.artifacts["policy"], "policy of B": b.artifacts["policy"]}
    own, other = b.artifacts["reward"], a.artifacts["reward"]
    if a.base is None or b.base is None or own is None or None in policies.values():
        needed = "--sample: both policies, their base and B's reward model are needed, and not all of them are to be had"
        raise ArtifactError(list(dict.fromkeys([needed, *a.unavailable, *b.unavailable])))
    base = shared_base.find(a.base, b.base, snapshot_b)
    rewards = {"B's reward model": own} | ({} if other is None or updates.same(own, other) else {"A's reward model": other})
    kept = {name: one.artifact for name, one in (policies | rewards).items() if one}
    for name, artifact in kept.items():
        artifacts.require_base(Path(name), artifact, base)
    try:
        settings = params_file.load(Evaluated, snapshot_b.tracked(layout.PARAMS) or layout.PARAMS).evaluate
    except SettingsError as error:
        raise SettingsError(snapshot_b.told(error)) from error
    prompts = records.load_prompts(snapshot_b.output(layout.VALIDATE) / layout.HELDOUT_PROMPTS.name, at_least=1)
    from stages.learning import fresh_samples  # it imports torch, which comparing what was written does without

    rows = fresh_samples.draw(
        base,
        {name: kept[name] for name in policies},
        {name: kept[name] for name in rewards},
        prompts,
        dataclasses.replace(settings, samples=samples),
        params_file.load(Computed).runtime,
    )
    average = comparison.averaging(b, bootstrap_mean)
    ours, theirs = rows.values()
    return [completions.compare(ours, theirs, name, average, reward=name) for name in rewards]


def read_arguments(arguments: Sequence[str]) -> Request:
    """The request in the command line; raises SettingsError for one that makes no sense."""
    names: list[str] = []
    values: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        option, equals, value = waiting.pop(0).partition("=")
        if not option.startswith("-"):
            names.append(option + equals + value)
        elif option == "--json" and not equals:
            values[option] = ""
        elif option in ("--html", "--sample"):
            if not equals and not waiting:
                raise SettingsError(f"{option}: expected {'a file' if option == '--html' else 'a number'} after it")
            values[option] = value if equals else waiting.pop(0)
        else:
            raise SettingsError(f"{option}: expected A, B, --json, --html FILE or --sample N")
    if not 1 <= len(names) <= 2:
        raise SettingsError(f"python -m stages.compare: expected one or two versions, found {len(names)}; see --help")
    html = values.get("--html")
    samples = values.get("--sample")
    return Request(
        names[0],
        names[1] if len(names) == 2 else WORKSPACE,
        "--json" in values,
        None if html is None else _page(html),
        None if samples is None else _samples(samples),
    )


def _page(name: str) -> Path:
    path = Path(name)
    inside = [folder for folder in KEPT if folder.resolve() in path.resolve().parents]
    if inside:
        raise SettingsError(f"--html: {name} lies in {inside[0]}/, which the pipeline reads or writes; name a file elsewhere")
    if not path.parent.is_dir():
        raise SettingsError(f"--html: there is no folder {path.parent} to put {path.name} into; make it, or name another")
    if path.suffix.lower() not in PAGES:
        raise SettingsError(f"--html: {name} is not named as a page; expected a file that ends with {' or '.join(PAGES)}")
    return path


def _samples(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MOST_SAMPLES:
        raise SettingsError(f"--sample: found {text[:40]!r}, expected a whole number from 1 to {MOST_SAMPLES}")
    return int(text)


if __name__ == "__main__":
    if sys.argv[1:] in (["--help"], ["-h"]):
        runner.print_help(main)
    terminal = Page(sys.stdout.isatty(), shutil.get_terminal_size().columns) if sys.stdout.isatty() else comparison_text.PLAIN
    runner.finish("compare", lambda: main(read_arguments(sys.argv[1:]), terminal))

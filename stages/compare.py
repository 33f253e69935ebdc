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
from pathlib import Path
from typing import NamedTuple

from stages.core import layout, runner
from stages.core.atomic import write_bytes
from stages.core.errors import SettingsError
from stages.core.progress import say
from stages.learning.metrics import bootstrap_mean
from stages.versions import comparison, comparison_html, comparison_text, snapshot
from stages.versions.comparison_text import Page
from stages.versions.revision import WORKSPACE, resolve

MOST_SAMPLES = 1000
PAGES = (".html", ".htm")


class Request(NamedTuple):
    """What one call asks for."""

    a: str
    b: str
    json: bool
    html: Path | None
    samples: int | None


def main(request: Request, page: Page = comparison_text.PLAIN) -> str:
    """Compares, writes the page where one is asked for, and returns what is to be printed."""
    with snapshot.opened(resolve(request.a)) as a, snapshot.opened(resolve(request.b)) as b:
        read_a, read_b = comparison.read(a), comparison.read(b)
        compared = comparison.compare(read_a, read_b, bootstrap_mean)
        if request.samples is not None:
            # It imports torch, which a comparison of what was written does without.
            from stages.learning import fresh_samples

            compared = dataclasses.replace(compared, fresh=[])
    if request.html is not None:
        write_bytes(request.html, comparison_html.render(compared))
        say(f"wrote {request.html}")
    return runner.as_json(compared.as_json()) if request.json else comparison_text.render(compared, page)


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
    inside = [folder for folder in (layout.ARTIFACTS, layout.REPORTS) if folder.resolve() in path.resolve().parents]
    if inside:
        raise SettingsError(f"--html: {name} lies in {inside[0]}/, which holds what the stages write; name a file elsewhere")
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

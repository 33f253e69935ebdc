"""A comparison as one page that needs nothing else: no network, no script; every text in it is escaped."""

from pathlib import Path
from typing import Any

import jinja2

from stages.versions import wording
from stages.versions.comparison import Comparison

TEMPLATE = Path(__file__).with_name("comparison.html.jinja")

ROWS = 1000
"""How many rows of each kind of change are on the page; the rest are counted."""


def render(compared: Comparison) -> bytes:
    """The page, in UTF-8."""
    environment = jinja2.Environment(
        autoescape=True, finalize=_seen, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    return template.render(compared=compared, wording=wording, most_rows=ROWS).encode("utf-8", "replace")


def _seen(value: Any) -> Any:
    return wording.seen(value) if type(value) is str else value

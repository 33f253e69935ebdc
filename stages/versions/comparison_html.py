"""A comparison as one page that needs nothing else: no network, no script; every text in it is escaped."""

from pathlib import Path

from stages.pages import frame
from stages.versions.comparison import Comparison

TEMPLATE = Path(__file__).with_name("comparison.html.jinja")

ROWS = 1000
"""How many rows of each kind of change are on the page; the rest are counted."""


def render(compared: Comparison) -> bytes:
    """The page, in UTF-8."""
    return frame.render(TEMPLATE, compared=compared, most_rows=ROWS)

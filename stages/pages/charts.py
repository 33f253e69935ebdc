"""Charts as SVG for a page, drawn by Vega-Lite, the grammar of DVC's own plots; their colours are the page's, by its style."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import vl_convert
from markupsafe import Markup

POINTS = 200
"""Steps that are drawn of a curve; of a longer one every so many-th, and the last."""
BINS = 20
"""Of the histogram, at most."""
WIDTH, HEIGHT = 320, 150
SHARE = "share "
"""What the title of a curve from 0 to 1 begins with."""

Row = Mapping[str, float | None]


class Chart(NamedTuple):
    """A chart and what it shows, in words."""

    title: str
    svg: Markup


def curve(rows: Sequence[Row], column: str, title: str, around: str | None = None) -> Chart | None:
    """A column over the steps, with the deviation `around` it as a band where a column of that is named; None where it has no value."""
    if all(row.get(column) is None for row in rows):
        return None
    every = math.ceil(len(rows) / POINTS)
    drawn = [row for number, row in enumerate(rows) if number % every == 0 or number + 1 == len(rows)]
    values = [{"step": row["step"], "value": row.get(column), "spread": row.get(around) if around else None} for row in drawn]
    x = {"field": "step", "type": "quantitative", "title": None, "axis": {"tickMinStep": 1, "format": "d", "grid": False}}
    y = {
        "field": "value",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [0, 1]} if title.startswith(SHARE) else {"zero": False},
    }
    line: dict[str, Any] = {"mark": {"type": "line", "point": len(drawn) == 1}, "encoding": {"x": x, "y": y}}
    layers = [line]
    if around:
        low, high = ({"calculate": f"datum.value {sign} datum.spread", "as": name} for sign, name in (("-", "low"), ("+", "high")))
        band = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
        layers.insert(0, {"transform": [low, high], "mark": {"type": "area", "opacity": 0.25}, "encoding": band})
    shown = f"{title}{', with the spread within groups' if around else ''}{f', every {every}th step' if every > 1 else ''}"
    return _drawn(shown, {"data": {"values": values}, "layer": layers})


def margins(values: Sequence[float]) -> Chart:
    """How many held-out pairs have which margin, chosen minus rejected score, with a line at 0."""
    x = {"field": "margin", "type": "quantitative", "bin": {"maxbins": BINS}, "title": "margin"}
    bars = {
        "data": {"values": [{"margin": value} for value in values]},
        "mark": "bar",
        "encoding": {"x": x, "y": {"aggregate": "count", "type": "quantitative", "title": "pairs", "axis": {"tickMinStep": 1}}},
    }
    zero = {"data": {"values": [{"margin": 0}]}, "mark": {"type": "rule"}, "encoding": {"x": {"field": "margin", "type": "quantitative"}}}
    return _drawn(f"Margins of {len(values)} held-out pairs: chosen minus rejected score", {"layer": [bars, zero]})


def calibration(bins: Sequence["Bin"]) -> Chart:
    """How often the reward model is right where it is so sure, with the line on which it would be calibrated."""
    x = {"field": "confidence", "type": "quantitative", "title": "confidence", "scale": {"domain": [0.5, 1]}, "axis": {"tickCount": 5}}
    y = {"field": "accuracy", "type": "quantitative", "title": "share ordered right", "scale": {"domain": [0, 1]}}
    size = {"field": "pairs", "type": "quantitative", "legend": None, "scale": {"range": [30, 300]}}
    points = {
        "data": {"values": [one._asdict() for one in bins]},
        "mark": {"type": "point", "filled": True},
        "encoding": {"x": x, "y": y, "size": size},
    }
    line = {
        "data": {"values": [{"confidence": 0.5, "accuracy": 0.5, "x2": 1, "y2": 1}]},
        "mark": "rule",
        "encoding": {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}},
    }
    return _drawn("Calibration on held-out pairs: confidence, by the margin, against the share ordered right", {"layer": [line, points]})


class Bin(NamedTuple):
    """Held-out pairs whose confidences are neighbours."""

    confidence: float
    """Mean of sigmoid(|margin|)."""
    accuracy: float
    """Share whose chosen side scores higher; a tie counts half."""
    pairs: int


def calibrated(values: Sequence[float], bins: int = 5) -> list[Bin]:
    """Pairs by their margins, sorted by confidence and cut into at most so many bins of as many pairs each."""
    ordered = sorted(values, key=abs)
    count = min(bins, len(ordered))
    parts = [ordered[len(ordered) * number // count : len(ordered) * (number + 1) // count] for number in range(count)]
    return [
        Bin(
            sum(1 / (1 + math.exp(-abs(margin))) for margin in part) / len(part),
            sum(1.0 if margin > 0 else 0.5 if margin == 0 else 0.0 for margin in part) / len(part),
            len(part),
        )
        for part in parts
    ]


def _drawn(title: str, spec: Mapping[str, Any]) -> Chart:
    config = {"background": None, "view": {"stroke": None}, "axis": {"labelFontSize": 10, "titleFontSize": 10, "titleFontWeight": "normal"}}
    svg = vl_convert.vegalite_to_svg({**spec, "width": WIDTH, "height": HEIGHT, "config": config})
    return Chart(title, Markup(svg))

"""The section about pruning: quality against what is removed, for each order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from kernelseed.report import figures
from kernelseed.report.sections import Block, Figures, Panel, Section, Shown, Words
from kernelseed.report.svg import PAPER, look, number, percent, tag

NAMES = {"snr": "signal-to-noise", "magnitude": "magnitude", "random": "random"}
AXES = {"weights": "weights that are zero", "channels": "parameters, of the plain network's"}
ABOUT = (
    "Weights are set to zero, least first: by |mean| / standard deviation over all layers, by |mean|, or at random. "
    "In a kernel seed network, channels of seeds are dropped too, which makes it smaller. The right end is the most "
    "that was removed."
)
QUALITIES = {"error": "error rate", "nll": "negative log-likelihood"}

Points = Sequence[Mapping[str, Any]]


def section(shown: Sequence[Shown]) -> Section | None:
    """Error and NLL of each run that was pruned, against what was removed."""
    blocks: list[Block] = []
    for one in shown:
        found = one.run.found.get("pruning")
        if found and (points := points_of(found, one.run.way)):
            blocks += [
                Words(f"{one.name}, {found['split']} images:"),
                Figures([Panel(svg) for svg in pruning_figures(points)]),
            ]
    return Section("pruning", "Pruning", "How much can be removed?", [Words(ABOUT), *blocks]) if blocks else None


def points_of(found: Mapping[str, Any], way: str) -> list[dict[str, Any]]:
    """The points of a run's pruning curve, as "mean" or "ensemble" predicts; with all that is drawn of each."""
    return [
        {
            **{key: point[key] for key in ("what", "by", "share", "relative")},
            "error": 1 - point["metrics"][way]["accuracy"],
            "nll": point["metrics"][way]["nll"],
        }
        for point in found["points"]
        if way in point["metrics"]
    ]


def pruning_figures(points: Points) -> list[Markup]:
    """Error rate and NLL against the share of zeros and, if channels were dropped, against size."""
    found = {what: _curves(points, what) for what in AXES}
    return [
        figures.lines(
            [
                figures.Series(NAMES.get(by, by), [x for x, _ in curve], [one[quality] for _, one in curve], look(i))
                for i, (by, curve) in enumerate(curves.items())
            ],
            AXES[what],
            title,
            x_show=_removed if what == "weights" else _left,
            y_show=percent if quality == "error" else number,
        )
        for what, curves in found.items()
        if curves
        for quality, title in QUALITIES.items()
    ]


def picture(found: Mapping[str, Any]) -> str:
    """A run's pruning curve as one SVG file, two figures a row: by the ensemble if there is one."""
    way = "ensemble" if "ensemble" in found["points"][0]["metrics"] else "mean"
    drawn = pruning_figures(points_of(found, way))
    width, height = figures.WIDTH, figures.HEIGHT
    placed = [
        Markup("<svg x='{}' y='{}' width='{}' height='{}' ").format(i % 2 * width, i // 2 * height, width, height)
        + Markup(str(one).removeprefix("<svg "))
        for i, one in enumerate(drawn)
    ]
    whole = f"0 0 {2 * width} {math.ceil(len(drawn) / 2) * height}"
    title = tag("title", f"Pruning of {found['labels'][way]}, {found['split']} images")
    paper = tag("rect", width="100%", height="100%", fill=PAPER)
    return str(
        tag("svg", title, paper, *placed, xmlns="http://www.w3.org/2000/svg", viewBox=whole, font_family="sans-serif")
    )


def _curves(points: Points, what: str) -> dict[str, list[tuple[float, Mapping[str, Any]]]]:
    """By order, from the whole network on: where a point is on the axis, and the point."""
    orders = dict.fromkeys(point["by"] for point in points if point["what"] == what)
    return {
        by: [(_place(p, what), p) for p in points if p["what"] == "nothing" or (p["what"], p["by"]) == (what, by)]
        for by in orders
    }


def _place(point: Mapping[str, Any], what: str) -> float:
    """Zeros on a scale on which 0, 90 and 99 % are equally far apart; sizes from large to small."""
    return -math.log10(max(1 - point["share"], 1e-9)) if what == "weights" else -point["relative"]


def _removed(place: float) -> str:
    return f"{100 * (1 - 10**-place):.{max(0, math.ceil(place) - 2)}f}%"  # 0, 68, 90, 97, 99, 99.7


def _left(place: float) -> str:
    return percent(-place)

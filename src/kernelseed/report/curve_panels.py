"""Small panels of curves, whose names are in a key beside them."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from kernelseed.report.figures import PANEL, SMALL, Series
from kernelseed.report.svg import Scale, drawing, marker, path, percent, tag, x_axis, y_axis


def small_lines(series: Sequence[Series], x_label: str, y_label: str, about: str) -> Markup:
    """Curves of shares, from 0 to 100 %, with a marker at each point."""
    left, right, top, bottom = 42, PANEL - 12, 26, 150
    x = Scale(float(min(series[0].x)), float(max(series[0].x)), left, right)
    y = Scale(0, 1, bottom, top)
    body = [y_axis(y, left, right, y_label, percent, about=4), x_axis(x, bottom, x_label, about=5)]
    for one in series:
        xs, ys = [x(v) for v in one.x], [y(v) for v in one.y]
        said = f"{one.label}: {', '.join(percent(round(float(v), 3)) for v in one.y)}"
        dots = [marker(one.look, at, height, 2.2) for at, height in zip(xs, ys, strict=True)]
        curve = path(xs, ys, one.look.colour, stroke_width=1.3, stroke_dasharray=one.look.dash)
        body.append(tag("g", tag("title", said), curve, *dots))
    listed = ", ".join(one.label for one in series)
    return drawing(PANEL, bottom + 40, body, f"{y_label} against {x_label}, {about}: {listed}.", font_size=SMALL)

"""The figures of the report: each takes values and returns an SVG string that follows the theme of its page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from kernelseed.metrics import METRICS, Reliability
from kernelseed.report.labels import Box, label_points, shorten, spread, text_width
from kernelseed.report.svg import (
    INK,
    MUTED,
    PAPER,
    RULE,
    Look,
    Scale,
    Show,
    compact,
    drawing,
    line,
    marker,
    number,
    path,
    percent,
    rect,
    scale_for,
    tag,
    text,
    x_axis,
    y_axis,
)

WIDTH, HEIGHT = 460, 320  # of a figure that stands alone; narrow, so that a phone can still show its text
PANEL = 220  # the width of one of several small panels
SMALL = 11.5  # the size of the text there
_LONG_CURVE = 240  # points of a curve; more would not be visible at this size


@dataclass(frozen=True)
class Point:
    """A labelled point of a scatter plot."""

    label: str
    x: float
    y: float
    look: Look


@dataclass(frozen=True)
class Series:
    """A labelled curve."""

    label: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    look: Look
    band: tuple[np.ndarray, np.ndarray] | None = None
    """From where to where its values spread, at each x."""


@dataclass(frozen=True)
class Histogram:
    """Two groups over the same edges, drawn back to back; each bar is a share of its own group."""

    edges: np.ndarray
    above: np.ndarray
    below: np.ndarray

    @classmethod
    def of(cls, above: np.ndarray, below: np.ndarray, low: float, high: float, bins: int = 20) -> Histogram:
        """Count two groups of values into equal bins between low and high."""
        edges = np.linspace(low, high, bins + 1)
        counts = [np.histogram(np.clip(group, low, high), edges)[0] for group in (above, below)]
        return cls(edges, counts[0] / max(len(above), 1), counts[1] / max(len(below), 1))


def scatter(
    points: Sequence[Point],
    x_label: str,
    y_label: str,
    *,
    y_show: Show = number,
    reference: tuple[float, str] | None = None,
) -> Markup:
    """Points with labels that do not overlap; `reference` is an x with a vertical line, and the label of the line."""
    left, right, top, bottom = 58, WIDTH - 12, 30, HEIGHT - 44
    xs = [point.x for point in points] + ([reference[0]] if reference else [])
    x = scale_for(xs, left, right, pad=0.12, log=min(xs) > 0 and max(xs) / min(xs) > 12)
    y = scale_for([point.y for point in points], bottom, top, pad=0.15)
    body = [y_axis(y, left, right, y_label, y_show), x_axis(x, bottom, x_label, compact)]
    places = [(x(point.x), y(point.y)) for point in points]
    ceiling, avoid = top, []
    if reference:
        at = x(reference[0])
        ceiling = top + 16  # keeps the labels of points off the label of the line
        avoid = [Box(at - 2, top, at + 2, bottom)]
        end = at > (left + right) / 2
        body += [
            line(at, top, at, bottom, MUTED, stroke_dasharray="3 3"),
            text(reference[1], at + (-5 if end else 5), top + 10, anchor="end" if end else "start"),
        ]
    names = [shorten(point.label, 170) for point in points]
    boxes = label_points(names, places, Box(left + 2, ceiling, right, bottom - 2), avoid)
    for point, name, (px, py), box in zip(points, names, places, boxes, strict=True):
        body.append(_leader(px, py, box))
        said = f"{point.label}: {y_show(point.y)}, {point.x:,.0f} {x_label}"
        body.append(marker(point.look, px, py, 5.5, tag("title", said)))
        # anchored at the end that faces the point, so that the label stays near it in any font
        facing_left = box.right < px
        edge = box.right if facing_left else box.left
        anchor = "end" if facing_left else "start"
        halo = {"stroke": PAPER, "stroke_width": 3, "paint_order": "stroke"}
        body.append(text(name, edge, box.bottom - 4, anchor=anchor, fill=INK, class_="point-label", **halo))
    listed = "; ".join(f"{p.label} {y_show(p.y)} at {compact(p.x)}" for p in points)
    return drawing(WIDTH, HEIGHT, body, f"{y_label} against {x_label}: {listed}.")


def _leader(x: float, y: float, box: Box) -> Markup:
    """A thin line from a point to its label, if the label is not next to it."""
    if box.distance(x, y) <= 14:
        return Markup("")
    return line(x, y, *box.nearest(x, y), MUTED, stroke_width=0.7)


def lines(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    x_show: Show = number,
    y_show: Show = number,
    from_zero: bool = False,
    log: bool | None = None,
) -> Markup:
    """Curves with their names at the right. Long curves are thinned.

    The y axis is logarithmic if the values are positive and span decades, unless `from_zero` starts both axes at
    zero or `log` says otherwise.
    """
    names = [shorten(one.label, 130) for one in series]
    left, right, top, bottom = 48, WIDTH - 26 - max(text_width(name) for name in names), 30, HEIGHT - 44
    thin = [_thinned(np.asarray(s.x, float), np.asarray(s.y, float)) for s in series]
    values = np.concatenate([*(ys for _, ys in thin), *(edge for one in series for edge in one.band or ())])
    values = values[np.isfinite(values)]
    if log is None:
        log = bool(not from_zero and values.size > 0 and values.min() > 0 and values.max() / values.min() > 30)
    y = scale_for([0.0, *values] if from_zero else values, bottom, top, pad=0.04, log=log)
    x = scale_for(np.concatenate([xs for xs, _ in thin]), left, right, pad=0.0)
    if from_zero:
        x, y = Scale(0.0, x.high, left, right), Scale(0.0, y.high, bottom, top)
    body = [y_axis(y, left, right, y_label + (" (log scale)" if log else ""), y_show)]
    body.append(x_axis(x, bottom, x_label, x_show, about=4))
    faint = f"{min(0.12, 0.4 / len(series)):.2f}"  # where many bands lie over each other, they add up
    body += [_band(one, x, y, faint) for one in series if one.band is not None]
    ends = []
    for one, (xs, ys) in zip(series, thin, strict=True):
        spots = [y(v) if math.isfinite(v) and (v > 0 or not log) else math.nan for v in ys]
        pen = {"stroke_width": 1.8, "stroke_dasharray": one.look.dash}
        curve = path([x(v) for v in xs], spots, one.look.colour, **pen)
        body.append(tag("g", tag("title", one.label), curve))
        finite = [i for i, spot in enumerate(spots) if math.isfinite(spot)]
        ends.append((x(xs[finite[-1]]), spots[finite[-1]]) if finite else (right, bottom))
    heights = spread([end_y for _, end_y in ends], top + 4, bottom)
    for one, name, (end_x, end_y), height in zip(series, names, ends, heights, strict=True):
        body += [
            path([end_x, right + 3, right + 11], [end_y, end_y, height], one.look.colour, stroke_width=0.7),
            marker(one.look, right + 16, height, 3.5),
            text(name, right + 24, height + 4, fill=INK, class_="end-label"),
        ]
    listed = ", ".join(one.label for one in series)
    return drawing(WIDTH, HEIGHT, body, f"{y_label} against {x_label} for {listed}.")


def _band(one: Series, x: Scale, y: Scale, opacity: str) -> Markup:
    assert one.band is not None
    low, high = ([f"{x(at):.1f},{y(value):.1f}" for at, value in zip(one.x, edge, strict=True)] for edge in one.band)
    return tag("polygon", points=" ".join([*low, *reversed(high)]), fill=one.look.colour, opacity=opacity)


def _thinned(xs: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """About _LONG_CURVE of the points, evenly spaced in x, including the first and the last."""
    if len(xs) <= _LONG_CURVE:
        return xs, ys
    wanted = np.searchsorted(xs, np.linspace(xs[0], xs[-1], _LONG_CURVE)).clip(max=len(xs) - 1)
    kept = np.unique(np.concatenate([[0], wanted, [len(xs) - 1]]))
    return xs[kept], ys[kept]


def reliability_diagram(bins: Reliability, style: Look, label: str) -> Markup:
    """Accuracy against confidence with 95 % intervals; below, the number of examples in each bin."""
    edges, counts, confidence, accuracy = (
        np.asarray(values) for values in (bins.edges, bins.count, bins.confidence, bins.accuracy)
    )
    left, right, top, bottom, floor = 42, PANEL - 18, 26, 180, 238
    x, y = Scale(0, 1, left, right), Scale(0, 1, bottom, top)
    # log scale, because the last bin often holds nearly all examples; from 1/2, so that one example has a visible bar
    count_y = Scale(0.5, max(float(counts.max()), 1.0), floor, bottom + 14, math.log10)
    body = [y_axis(y, left, right, "accuracy", percent, about=4)]
    body.append(line(x(0), y(0), x(1), y(1), MUTED, stroke_dasharray="4 3"))
    for b in np.flatnonzero(counts):
        low, width = x(edges[b]) + 0.5, x(edges[b + 1]) - x(edges[b]) - 1
        wilson_low, wilson_high = wilson(float(accuracy[b]), int(counts[b]))
        said = tag(
            "title",
            f"confidence {edges[b]:.2f} to {edges[b + 1]:.2f}, mean {confidence[b]:.3f}: "
            f"accuracy {accuracy[b]:.3f} (95% interval {wilson_low:.3f} to {wilson_high:.3f}), "
            f"{counts[b]:,} examples",
        )
        at = x(confidence[b])
        column = [
            said,
            rect(low, y(accuracy[b]), width, bottom - y(accuracy[b]), style.colour, opacity=0.3),
            line(at, y(wilson_low), at, y(wilson_high), style.colour, stroke_width=1.4),
            marker(style, at, y(accuracy[b]), 3),
            rect(low, count_y(counts[b]), width, floor - count_y(counts[b]), style.colour),
        ]
        body.append(tag("g", *column))
    body += [
        line(left, bottom, right, bottom, MUTED),
        text(compact(counts.max(), 2), left - 6, bottom + 20, anchor="end"),
        text("1", left - 6, count_y(1) + 4, anchor="end"),
        x_axis(x, floor, "confidence", percent, about=4),
    ]
    ece, mce = METRICS["ece"], METRICS["mce"]
    errors = f"{ece.words} {ece.show(bins.ece)}, {mce.words} {mce.show(bins.mce)}"
    description = f"Reliability of {label}: {errors}."
    return drawing(PANEL, floor + 40, body, description, font_size=SMALL)


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson 95 % interval of a proportion over `count` examples; it is also valid at 0 and 1."""
    scale = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def back_to_back(
    shares: Histogram,
    style: Look,
    x_label: str,
    above: str,
    below: str,
    *,
    x_show: Show = number,
) -> Markup:
    """Two histograms on one axis: filled bars upward, hollow bars downward, on a square-root scale."""
    left, right, top, bottom = 42, PANEL - 18, 24, 184
    middle = (top + bottom) / 2
    x = Scale(float(shares.edges[0]), float(shares.edges[-1]), left, right)
    height = Scale(0, 1, 0, middle - top, math.sqrt)
    body = []
    for share in (0.05, 0.25, 0.5, 1.0):
        for at in (middle - height(share), middle + height(share)):
            body += [line(left, at, right, at), text(percent(share), left - 6, at + 4, anchor="end")]
    for b, (up, down) in enumerate(zip(shares.above, shares.below, strict=True)):
        low, high = x(shares.edges[b]), x(shares.edges[b + 1])
        spans = f"{x_show(shares.edges[b])} to {x_show(shares.edges[b + 1])}"
        said = tag("title", f"{x_label} {spans}: {up:.1%} of {above}, {down:.1%} of {below}")
        bars = [rect(low + 0.5, middle - height(up), high - low - 1, height(up), style.colour)]
        if down > 0:
            hollow = {"stroke": style.colour, "stroke_width": 1.2}
            bars.append(rect(low + 1, middle, high - low - 2, height(down), PAPER, **hollow))
        body.append(tag("g", said, *bars))
    body += [
        line(left, middle, right, middle, MUTED),
        text(f"▲ {above}", left + 4, top - 8, fill=INK),
        text(f"▼ {below}", left + 4, bottom + 14, fill=INK),
        line(left, bottom + 20, right, bottom + 20, RULE),
        x_axis(x, bottom + 20, x_label, x_show, about=4),
    ]
    description = f"Histogram of {x_label}: {above} upward, {below} downward."
    return drawing(PANEL, bottom + 60, body, description, font_size=SMALL)

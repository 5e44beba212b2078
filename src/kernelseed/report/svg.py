"""The SVG elements of the figures: shapes, scales, axes, looks.

Colours are CSS variables with a fallback, so that a figure follows the theme of its page and also works alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

Show = Callable[[float], str]  # how a value is written

FONT_SIZE = 12
INK = "var(--ink, #1d2126)"
MUTED = "var(--muted, #59626d)"
RULE = "var(--rule, #dcdad2)"
PAPER = "var(--paper, #fcfbf8)"

# Chosen so that all differ under deuteranopia, protanopia and tritanopia, on light and on dark backgrounds.
RUN_COLOURS_LIGHT = ("#1a86e0", "#b93a0b", "#1f6f6c", "#6d28c4", "#c07a10", "#dd4a9e", "#85103a", "#2f3f80")
RUN_COLOURS_DARK = ("#77d0ff", "#fb8530", "#2fae9d", "#b35cf7", "#fbd24e", "#cf86ea", "#ea5257", "#b6cc9f")
DASHES = ("", "6 3", "2 3")
MARKERS = (
    "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z",  # circle
    "M-.9-.9H.9V.9H-.9Z",  # square
    "M0-1.2L1.1.8H-1.1Z",  # triangle
    "M0-1.3L1.2 0L0 1.3L-1.2 0Z",  # diamond
    "M0 1.2L1.1-.8H-1.1Z",  # triangle, point down
)


@dataclass(frozen=True)
class Look:
    """The colour, marker and dashes of one run in all figures."""

    colour: str
    marker: str
    dash: str


def look(slot: int) -> Look:
    """The look of the run at this index; two runs never differ by colour alone."""
    colour = slot % len(RUN_COLOURS_LIGHT)
    return Look(
        colour=f"var(--run-{colour}, {RUN_COLOURS_LIGHT[colour]})",
        marker=MARKERS[slot % len(MARKERS)],
        dash=DASHES[slot // len(RUN_COLOURS_LIGHT) % len(DASHES)],
    )


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. Children that are not Markup are escaped; `font_size` becomes `font-size`; None is left out."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _short(value))
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    content = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, content)


def _short(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, (float, np.floating)) else value


def text(
    content: object,
    x: float,
    y: float,
    *,
    anchor: str | None = None,
    fill: str = MUTED,
    **more: object,
) -> Markup:
    """Text at a place; `anchor` is the end of the text that lies there ("start" by default)."""
    return tag("text", content, x=x, y=y, text_anchor=anchor, fill=fill, **more)


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = RULE, **more: object) -> Markup:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, **more)


def rect(x: float, y: float, width: float, height: float, fill: str, **more: object) -> Markup:
    """A filled rectangle."""
    return tag("rect", x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), fill=fill, **more)


def path(xs: Iterable[float], ys: Iterable[float], stroke: str, **more: object) -> Markup:
    """A line through the points, with a gap at values that are not finite."""
    steps: list[str] = []
    pen = "M"
    for x, y in zip(xs, ys, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        steps.append(f"{pen}{_short(float(x))} {_short(float(y))}")
        pen = "L"
    return tag("path", d="".join(steps), fill="none", stroke=stroke, stroke_linejoin="round", **more)


def marker(style: Look, x: float, y: float, size: float, *children: object) -> Markup:
    """The run's marker at a place."""
    place = f"translate({_short(float(x))} {_short(float(y))}) scale({_short(float(size))})"
    return tag("path", *children, d=style.marker, transform=place, fill=style.colour)


def chip(style: Look) -> Markup:
    """The run's marker, small enough for a line of text."""
    return drawing(14, 14, [marker(style, 7, 7, 5)], None, class_="chip", aria_hidden="true")


def drawing(
    width: float,
    height: float,
    body: Sequence[Markup],
    description: str | None,
    font_size: float = FONT_SIZE,
    **more: object,
) -> Markup:
    """The outermost element: for a screen reader, an image with a description."""
    spoken = {"role": "img", "aria_label": description} if description else {}
    return tag(
        "svg",
        *body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        font_size=font_size,
        font_family="inherit",
        **spoken,
        **more,
    )


@dataclass(frozen=True)
class Scale:
    """A map from values in [low, high] to positions from start to stop, linear or transformed by `bend`."""

    low: float
    high: float
    start: float
    stop: float
    bend: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high = self.bend(self.low), self.bend(self.high)
        return self.start + (self.bend(value) - low) / (high - low) * (self.stop - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers inside the scale, about as many as requested."""
        if self.bend is math.log10:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for digits in ((1, 2, 3, 5), (1, 3), (1,)):
                marks = [digit * 10.0**decade for decade in decades for digit in digits]
                inside = [mark for mark in marks if self.low <= mark <= self.high]
                if len(inside) <= about + 1:
                    break
            return inside[:: math.ceil(len(inside) / (about + 1))] if inside else [self.low, self.high]
        rough = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.9)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def scale_for(values: Iterable[float], start: float, stop: float, *, pad: float = 0.08, log: bool = False) -> Scale:
    """A scale that contains all finite values, with some padding."""
    finite = [float(value) for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if log:
        low, high = math.log10(low), math.log10(high)
    air = (high - low) * pad if high > low else abs(high) * 0.05 or 1.0
    low, high = low - air, high + air
    return Scale(10**low, 10**high, start, stop, math.log10) if log else Scale(low, high, start, stop)


def number(value: float) -> str:
    """-0.5 -> −0.5."""
    return f"{value:.6g}".replace("-", "−")


def percent(value: float) -> str:
    """0.955 -> 95.5%."""
    return f"{100 * value:.5g}%".replace("-", "−")


def compact(value: float, digits: int = 3) -> str:
    """1234567 -> 1.23M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{suffix}"
    return f"{value:.4g}"


def _same_decimals(written: Sequence[str]) -> list[str]:
    """["0.15", "0.2"] -> ["0.15", "0.20"]; a percent sign stays at the end."""
    digits = max((len(shown.rstrip("%").partition(".")[2]) for shown in written), default=0)
    whole = [shown.rstrip("%").partition(".") for shown in written]
    return [
        head + ("." + tail.ljust(digits, "0") if digits else "") + ("%" if shown.endswith("%") else "")
        for (head, _, tail), shown in zip(whole, written, strict=True)
    ]


def x_axis(scale: Scale, y: float, label: str, show: Show = number, about: int = 5) -> Markup:
    """The axis at height y, with ticks and the label below it."""
    parts = [line(scale.start, y, scale.stop, y, MUTED)]
    for value in scale.ticks(about):
        parts += [
            line(scale(value), y, scale(value), y + 4, MUTED),
            text(show(value), scale(value), y + 17, anchor="middle"),
        ]
    parts.append(text(label, (scale.start + scale.stop) / 2, y + 34, anchor="middle", fill=INK))
    return Markup("").join(parts)


def y_axis(
    scale: Scale,
    left: float,
    right: float,
    label: str,
    show: Show = number,
    about: int = 5,
) -> Markup:
    """Grid lines with their values at the left, and the label above, so that no text is rotated."""
    parts = [text(label, 2, min(scale.start, scale.stop) - 10, fill=INK)]
    values = scale.ticks(about)
    written = [show(value) for value in values]
    if scale.bend is not math.log10:
        written = _same_decimals(written)
    for value, shown in zip(values, written, strict=True):
        parts += [
            line(left, scale(value), right, scale(value)),
            text(shown, left - 6, scale(value) + 4, anchor="end"),
        ]
    return Markup("").join(parts)

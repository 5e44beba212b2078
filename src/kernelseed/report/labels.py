"""The placement of labels for points and lines, without overlaps."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelseed.report.svg import FONT_SIZE

LINE_HEIGHT = FONT_SIZE * 1.25
_DETOUR = 50  # how much farther away a label may go to keep clear of a line or another label


@dataclass(frozen=True)
class Box:
    """A rectangle; y grows downward, as in SVG."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the two boxes overlap."""
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The place in the box that is nearest to the point."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)

    def distance(self, x: float, y: float) -> float:
        """The distance of the point from the box."""
        return math.dist((x, y), self.nearest(x, y))

    def inside(self, other: Box) -> bool:
        """Whether this box lies in the other one."""
        within = other.left <= self.left and self.right <= other.right
        return within and other.top <= self.top and self.bottom <= other.bottom


def text_width(label: str) -> float:
    """An estimate of the label's width, on the large side because fonts differ."""
    return FONT_SIZE * sum(_width(character) for character in label)


def _width(character: str) -> float:
    if character in "MWmw@%…—" or unicodedata.east_asian_width(character) in "WF":
        return 1.02
    return 0.76 if character.isupper() else 0.6


def shorten(label: str, width: float) -> str:
    """The label, cut to fit the width."""
    if text_width(label) <= width:
        return label
    while label and text_width(label + "…") > width:
        label = label[:-1]
    return label.rstrip() + "…"


def label_points(
    labels: Sequence[str], points: Sequence[tuple[float, float]], frame: Box, avoid: Sequence[Box] = ()
) -> list[Box]:
    """One box per label, near its point and clear of the other labels and of all markers.

    Greedy, in the order given: each label takes the nearest free place. A place counts as farther if it covers a box
    to avoid or if its leader line crosses another label. A label without a free place stays right of its point.
    """
    marks = [Box(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    placed: list[Box] = []
    leaders: list[list[Box]] = []
    for label, (x, y) in zip(labels, points, strict=True):
        places = list(_places(x, y, text_width(label), frame))
        taken, best, least = marks + placed, places[0], math.inf
        for box in sorted(places, key=lambda box: box.distance(x, y)):
            if box.distance(x, y) >= least:
                break
            if box.inside(frame) and not any(box.meets(other) for other in taken):
                crossed = sum(any(dot.meets(other) for dot in _leader(x, y, box)) for other in placed)
                crossed += sum(any(dot.meets(box) for dot in leader) for leader in leaders)
                crossed += sum(box.meets(other) for other in avoid)
                cost = box.distance(x, y) + _DETOUR * crossed
                best, least = (box, cost) if cost < least else (best, least)
        placed.append(best)
        leaders.append(_leader(x, y, best))
    return placed


def _leader(x: float, y: float, box: Box) -> list[Box]:
    """Points on the leader line from a point to its label."""
    near_x, near_y = box.nearest(x, y)
    steps = max(int(box.distance(x, y) / 4), 1)
    dots = [(x + (near_x - x) * i / steps, y + (near_y - y) * i / steps) for i in range(steps)]
    return [Box(dot_x - 1, dot_y - 1, dot_x + 1, dot_y + 1) for dot_x, dot_y in dots]


def _places(x: float, y: float, width: float, frame: Box) -> Iterator[Box]:
    """Candidate boxes for a label of this width around (x, y): right and left first, then wider and wider rings."""
    half = LINE_HEIGHT / 2
    for side in (x + 9, x - 9 - width):
        yield Box(side, y - half, side + width, y + half)
    reach = math.hypot(frame.right - frame.left, frame.bottom - frame.top)
    for distance in range(17, int(reach), 5):
        for sixteenth in (4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 13, 5, 11, 0, 8):
            angle = sixteenth * math.pi / 8
            middle = y - distance * math.sin(angle)
            # on the right of the point the left end of the text is near it, and the other way round
            left = x + distance * math.cos(angle) - width * (1 - math.cos(angle)) / 2
            left = min(max(left, frame.left), frame.right - width)
            yield Box(left, middle - half, left + width, middle + half)


def spread(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """The heights, moved at least one line apart between top and bottom, in the same order."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    gap = min(LINE_HEIGHT, (bottom - top) / max(len(heights) - 1, 1))
    moved = list(heights)
    lowest = top
    for i in order:
        moved[i] = lowest = max(moved[i], lowest)
        lowest += gap
    highest = bottom
    for i in reversed(order):
        moved[i] = highest = min(moved[i], highest)
        highest -= gap
    return moved

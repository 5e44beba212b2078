"""The cells of a column, with its best values marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernelseed.metrics import Metric


@dataclass(frozen=True)
class Cell:
    """The text of a value, and whether it is the best."""

    text: str
    best: bool


def marked(metric: Metric, values: Sequence[float | None]) -> list[Cell]:
    """One cell per value. All with the same text as the best value are marked, where there is more than one."""
    numbers = [math.nan if value is None else float(value) for value in values]
    known = [value for value in numbers if math.isfinite(value)]
    best = metric.best(known) if len(known) > 1 else None
    shown = [metric.show(value) if math.isfinite(value) else "–" for value in numbers]
    return [Cell(text, best=text == best) for text in shown]

"""The table of metrics: the name of each, which direction is better, and the format of its values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A metric, as shown in tables and pages.

    >>> accuracy = METRICS["accuracy"]
    >>> accuracy.heading, accuracy.show(0.95), accuracy.best([0.91, 0.95004, 0.95001])
    ('ACC ↑', '0.9500', '0.9500')
    """

    name: str
    """The key in the results of a run."""
    title: str
    """The name in the heading of a table."""
    words: str
    """The name in a sentence."""
    better: Literal["higher", "lower"] = "lower"
    unit: str = ""
    template: str = "{:.4f}"

    @property
    def arrow(self) -> str:
        """The arrow in the better direction."""
        return "↑" if self.better == "higher" else "↓"

    @property
    def heading(self) -> str:
        """The title with its arrow."""
        return f"{self.title} {self.arrow}"

    @property
    def meaning(self) -> str:
        """The name in words, with the unit."""
        return f"{self.words} in {self.unit}" if self.unit else self.words

    def show(self, value: float) -> str:
        """The text of a value."""
        return self.template.format(value)

    def gain(self, first: float, second: float) -> float:
        """How much better the first value is than the second; negative if it is worse."""
        return first - second if self.better == "higher" else second - first

    def best(self, values: Iterable[float]) -> str | None:
        """The text of the best value; values with the same text tie. None if no value is finite."""
        finite = [value for value in values if math.isfinite(value)]
        return self.show((max if self.better == "higher" else min)(finite)) if finite else None


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "ACC", "accuracy", better="higher"),
        Metric("nll", "NLL", "negative log-likelihood", unit="nats"),
        Metric("ece", "ECE", "expected calibration error"),
        Metric("ace", "ACE", "average calibration error"),
        Metric("mce", "MCE", "maximum calibration error"),
        Metric("brier", "Brier", "Brier score"),
    )
}
"""The metrics of tables, in the order of their columns."""

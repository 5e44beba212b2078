"""The one table of metrics: what each is called, which end of it is better, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A metric as tables and pages show it.

    >>> accuracy = METRICS["accuracy"]
    >>> accuracy.heading, accuracy.show(0.95), accuracy.best([0.91, 0.95004, 0.95001])
    ('ACC ↑', '0.9500', '0.9500')
    """

    name: str
    """Its key in the results of a run."""
    title: str
    """In the heading of a table."""
    words: str
    """In a sentence."""
    better: Literal["higher", "lower"] = "lower"
    unit: str = ""
    template: str = "{:.4f}"

    @property
    def arrow(self) -> str:
        """To the better end."""
        return "↑" if self.better == "higher" else "↓"

    @property
    def heading(self) -> str:
        """The title with its arrow."""
        return f"{self.title} {self.arrow}"

    @property
    def meaning(self) -> str:
        """What the title stands for, with the unit."""
        return f"{self.words} in {self.unit}" if self.unit else self.words

    def show(self, value: float) -> str:
        """A value as it is written."""
        return self.template.format(value)

    def gain(self, first: float, second: float) -> float:
        """By how much the first value is better than the second; negative if it is worse."""
        return first - second if self.better == "higher" else second - first

    def best(self, values: Iterable[float]) -> str | None:
        """The best value as it is written: all that read like it share the first place. None if no value is finite."""
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
"""What tables compare, in the order of their columns."""

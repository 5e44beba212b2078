"""The table of metrics: the name of each, which direction is better, and the format of its values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


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
    aim: float | None = None
    """The best value, where that is neither the highest nor the lowest."""

    @property
    def arrow(self) -> str:
        """The arrow in the better direction."""
        if self.aim is not None:
            return "→"
        return "↑" if self.better == "higher" else "↓"

    @property
    def direction(self) -> str:
        """What is better, in words."""
        return self.better if self.aim is None else f"nearer to {self.aim:g}"

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
        if self.aim is not None:
            return abs(second - self.aim) - abs(first - self.aim)
        return first - second if self.better == "higher" else second - first

    def best(self, values: Iterable[float]) -> str | None:
        """The text of the best value; values with the same text tie. None if no value is finite."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        best = finite[0]
        for value in finite:
            best = value if self.gain(value, best) > 0 else best
        return self.show(best)


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
"""The metrics of classification in tables, in the order of their columns."""
REGRESSION_METRICS = {
    metric.name: metric
    for metric in (
        Metric("rmse", "RMSE", "root mean squared error", template="{:.4g}"),
        Metric("nll", "NLL", "negative log-likelihood", unit="nats"),
        Metric("crps", "CRPS", "continuous ranked probability score", template="{:.4g}"),
        Metric("coverage_50", "50%", "share of targets in their central 50% interval", aim=0.5, template="{:.3f}"),
        Metric("coverage_90", "90%", "share of targets in their central 90% interval", aim=0.9, template="{:.3f}"),
        Metric("interval_error", "IE", "mean error of the coverage of central intervals", template="{:.3f}"),
    )
}
"""Those of regression."""


def metrics_of(found: Mapping[str, Any]) -> dict[str, Metric]:
    """The table of metrics that these belong to.

    >>> next(iter(metrics_of({"rmse": 1.0, "nll": 2.0})))
    'rmse'
    """
    return REGRESSION_METRICS if "rmse" in found else METRICS

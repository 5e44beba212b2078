"""Damaged images in the report: accuracy, NLL and ECE against severity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelseed.data import CORRUPTIONS, SEVERITIES
from kernelseed.metrics import METRICS, Metric
from kernelseed.report import figures
from kernelseed.report.curve_panels import small_lines
from kernelseed.report.sections import Figures, Key, Panel, Section, Shown, Table, Words
from kernelseed.training import MEASURED

SEVERITY = (0, *SEVERITIES)


def section(shown: Sequence[Shown]) -> Section | None:
    """The average over corruptions with a band, a table of it, and the accuracy for each corruption."""
    holding = [one for one in shown if _curves(one)]
    if not holding:
        return None
    counts = sorted({one.run.found["shift"]["images"] for one in holding})
    words = (
        f"Test images ({' to '.join(f'{count:,}' for count in counts)}) are damaged in {_ways(len(_names(holding)))}, "
        "from severity 1, just visible, to 5, hard for a person; 0 is undamaged. The lines are means over these ways, "
        "the bands go from their lower to their upper quartile. A network that knows its limits loses accuracy, but "
        "its NLL and ECE stay low."
    )
    return Section(
        "shift",
        "Shift",
        "What happens when images are damaged?",
        [
            Words(words),
            Figures([_averaged(holding, METRICS[key]) for key in MEASURED]),
            Table("Means over corruptions, at severity 0, 3 and 5", *_table(holding)),
            Words("Accuracy against severity, for each corruption:"),
            Key(holding),
            Figures([_panel(holding, name) for name in _names(holding)], small=True),
        ],
    )


def _ways(count: int) -> str:
    return "one way" if count == 1 else f"{count} ways"


def _curves(one: Shown) -> dict[str, dict[str, list[float]]]:
    """By corruption and metric, of those that are known."""
    found = one.run.found.get("shift", {}).get("curves", {}).get(one.run.way, {})
    return {name: curve for name, curve in found.items() if name in CORRUPTIONS}


def _names(holding: Sequence[Shown]) -> list[str]:
    return list(dict.fromkeys(name for one in holding for name in _curves(one)))


def _values(one: Shown, key: str) -> np.ndarray:
    """(corruptions, severities)"""
    return np.array([curve[key] for curve in _curves(one).values()])


def _averaged(holding: Sequence[Shown], metric: Metric) -> Panel:
    series = []
    for one in holding:
        values = _values(one, metric.name)
        low, high = np.quantile(values, [0.25, 0.75], axis=0)
        series.append(figures.Series(one.name, SEVERITY, values.mean(0), one.look, (low, high)))
    return Panel(figures.lines(series, "severity", f"{metric.meaning} ({metric.better} is better)", log=False))


def _table(holding: Sequence[Shown]) -> tuple[list[Metric], list[tuple[Shown, list[float | None]]]]:
    chosen = [(METRICS[key], severity) for key in MEASURED for severity in (0, 3, 5)]
    columns = [
        Metric(metric.name, f"{metric.title} {severity}", f"{metric.words} at severity {severity}", metric.better)
        for metric, severity in chosen
    ]
    rows: list[tuple[Shown, list[float | None]]] = [
        (one, [float(_values(one, metric.name)[:, severity].mean()) for metric, severity in chosen]) for one in holding
    ]
    return columns, rows


def _panel(holding: Sequence[Shown], name: str) -> Panel:
    told = [(one, _curves(one)[name]["accuracy"]) for one in holding if name in _curves(one)]
    series = [figures.Series(one.name, SEVERITY, curve, one.look) for one, curve in told]
    return Panel(small_lines(series, "severity", "accuracy", name), title=name)

"""What the page shows of regression: predicted against true, coverage, errors against deviations, and their parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from kernelseed.metrics import LEVELS, REGRESSION_METRICS, interval_coverage
from kernelseed.report.figures import PANEL, SMALL, Series, lines
from kernelseed.report.record import RegressionRecord
from kernelseed.report.svg import (
    INK,
    MUTED,
    Look,
    Scale,
    drawing,
    line,
    marker,
    number,
    percent,
    scale_for,
    tag,
    text,
    x_axis,
    y_axis,
)

MOST_POINTS = 250  # of a small panel
Z95 = 1.96
IDEAL = Look(MUTED, "", "4 3")


def predicted_against_true(run: RegressionRecord, look: Look, name: str) -> Markup:
    """The predicted mean of each test example with its 95 % interval, against the true one."""
    left, right, top, bottom = 46, PANEL - 12, 26, 190
    shown = some(len(run.targets))
    true, mean, std = run.targets[shown], run.mean[shown], run.std[shown]
    low, high = scale_range(np.concatenate([true, mean]))
    x, y = Scale(low, high, left, right), Scale(low, high, bottom, top)
    body = [y_axis(y, left, right, "predicted", number, about=4)]
    body.append(line(x(low), y(low), x(high), y(high), MUTED, stroke_dasharray="4 3"))
    for t, m, s in zip(true, mean, std, strict=True):
        ends = [float(np.clip(m + sign * Z95 * s, low, high)) for sign in (-1, 1)]
        said = tag("title", f"true {t:.5g}, predicted {m:.5g} ± {s:.2g}")
        bar = line(x(t), y(ends[0]), x(t), y(ends[1]), look.colour, stroke_width=0.8, opacity=0.35)
        body.append(tag("g", said, bar, marker(look, x(t), y(m), 2)))
    body.append(x_axis(x, bottom, f"true {run.target}", number, about=4))
    about = f"Predicted against true {run.target} of {name}: {error_in_words(run)}."
    return drawing(PANEL, bottom + 40, body, about, font_size=SMALL)


def error_against_std(run: RegressionRecord, look: Look, name: str) -> Markup:
    """The size of each error against the predicted standard deviation; 95 % should lie below the dashed line."""
    left, right, top, bottom = 46, PANEL - 12, 26, 190
    shown = some(len(run.targets))
    std, error = run.std[shown], np.abs(run.errors[shown])
    x = scale_for(std, left, right, pad=0.1)
    high = max(float(error.max()), Z95 * x.high) * 1.05
    y = Scale(0.0, high, bottom, top)
    body = [y_axis(y, left, right, "size of the error", number, about=4)]
    start = max(x.low, 0.0)
    body.append(line(x(start), y(Z95 * start), x(x.high), y(Z95 * x.high), MUTED, stroke_dasharray="4 3"))
    body.append(text("1.96 × std", right, y(Z95 * x.high) - 5, anchor="end", fill=INK))
    for s, e in zip(std, error, strict=True):
        body.append(marker(look, x(s), y(e), 2, tag("title", f"std {s:.4g}: off by {e:.4g}")))
    body.append(x_axis(x, bottom, "predicted std", number, about=4))
    below = float((np.abs(run.errors) <= Z95 * run.std).mean())
    about = f"Size of the errors of {name} against their predicted standard deviation: {below:.1%} below 1.96 of it."
    return drawing(PANEL, bottom + 40, body, about, font_size=SMALL)


def coverage_curves(runs: Sequence[tuple[str, RegressionRecord, Look]]) -> Markup:
    """The share of test examples inside their central intervals, against the share that should be."""
    levels = [0.0, *LEVELS, 1.0]
    series = []
    for name, run, look in runs:
        mean, std, targets = map(torch.from_numpy, (run.mean, run.std, run.targets))
        inside = [interval_coverage(mean, std, targets, level) for level in LEVELS]
        series.append(Series(name, levels, [0.0, *inside, 1.0], look))
    series.append(Series("as it should be", [0.0, 1.0], [0.0, 1.0], IDEAL))
    return lines(series, "the interval's level", "share inside", x_show=percent, y_show=percent, from_zero=True)


def error_when_sure(runs: Sequence[tuple[str, RegressionRecord, Look]]) -> Markup:
    """The RMSE of the examples with the smallest predicted deviations, against how many they are."""
    series = []
    for name, run, look in runs:
        share = np.arange(1, len(run.targets) + 1) / len(run.targets)
        series.append(Series(name, share, running_rmse(run), look))
    return lines(series, "share of examples answered", "RMSE among them", x_show=percent, from_zero=True)


def varies(run: RegressionRecord) -> bool:
    """Whether its predicted deviations differ; those of one network with one noise do not."""
    return bool(run.std.max() > (1 + 1e-6) * run.std.min())


def running_rmse(run: RegressionRecord) -> np.ndarray:
    """The RMSE of the first k examples, by their predicted deviation, for each k."""
    order = np.argsort(run.std, kind="stable")
    return np.sqrt(np.cumsum(np.square(run.errors[order])) / np.arange(1, len(order) + 1))


def parts_row(run: RegressionRecord) -> list[str]:
    """Total, aleatoric and epistemic deviation, each the root of the mean variance; and the error that they are for."""
    roots = (math.sqrt(float(np.mean(np.square(part)))) for part in (run.errors, run.std, run.aleatoric, run.epistemic))
    return [f"{value:.4g}" for value in roots]


def error_in_words(run: RegressionRecord) -> str:
    """Its headline."""
    rmse = REGRESSION_METRICS["rmse"]
    return f"{rmse.words} {rmse.show(run.metrics['rmse'])}"


def some(count: int) -> np.ndarray:
    """Which of so many examples are drawn: evenly spaced ones."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int))


def scale_range(values: np.ndarray) -> tuple[float, float]:
    """The same limits for both axes."""
    around: Any = scale_for(values, 0, 1)
    return around.low, around.high

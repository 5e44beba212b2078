"""The results as a table with its best values marked, and as sentences that claim only what the test set supports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelseed.metrics import METRICS, REGRESSION_METRICS, Metric, metrics_of
from kernelseed.report.figures import wilson
from kernelseed.report.record import Record, RegressionRecord, RunRecord
from kernelseed.report.table_cells import Cell, marked


@dataclass(frozen=True)
class Column:
    """A column of the table, and how to get its value from a run."""

    metric: Metric
    value: Callable[[Record], float]


def _predicted(metric: Metric) -> Column:
    return Column(metric, lambda run: run.metrics.get(metric.name, math.nan))


def columns_for(table: Mapping[str, Metric]) -> tuple[Column, ...]:
    """The columns of a page with these metrics."""
    return (
        Column(Metric("parameters", "Parameters", "stored parameters", template="{:,.0f}"), lambda run: run.parameters),
        Column(
            Metric("relative", "Size", "parameters per plain parameter", template="{:.2f}×"),
            lambda run: run.relative_size,
        ),
        *map(_predicted, table.values()),
        Column(
            Metric("seconds", "Seconds", "time of the run", template="{:,.1f}"),
            lambda run: run.result.get("seconds", math.nan),
        ),
    )


COLUMNS, REGRESSION_COLUMNS = columns_for(METRICS), columns_for(REGRESSION_METRICS)


def cells(runs: Sequence[Record], column: Column) -> list[Cell]:
    """One cell per run. All runs with the same text as the best value are marked."""
    return marked(column.metric, [column.value(run) for run in runs])


def data_name(run: Record) -> str | None:
    """The name of the data set in the config: `data` or `dataset`, a string or a section with a `name`."""
    for key in ("dataset", "data"):
        said = run.config.get(key)
        if isinstance(said, dict):
            said = said.get("name")
        if isinstance(said, str):
            return said
    return None


def joined(words: Sequence[str]) -> str:
    """["a", "b", "c"] -> "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def same_examples(runs: Sequence[Record]) -> bool:
    """Whether all runs were tested on the same labels in the same order."""
    return all(np.array_equal(run.truth, runs[0].truth) for run in runs)


def _spelled(count: int) -> str:
    words = ("Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")
    return words[count - 2] if count <= 12 else f"{count}"


def what_was_compared(runs: Sequence[Record]) -> str:
    """The number of runs, the data sets and the number of test examples."""
    data = sorted({name for run in runs if (name := data_name(run))})
    counts = sorted({len(run.truth) for run in runs})
    count = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    trained = len({run.name for run in runs})
    runs_said = "One run" if trained == 1 else f"{_spelled(trained)} runs"
    if trained < len(runs):  # the same weights may predict in several ways
        runs_said += f" with {_spelled(len(runs)).lower()} ways of predicting"
    where = f" on {joined(data)}" if data else ""
    return f"{runs_said}{where}, judged on {count} test examples."


def sentences(runs: Sequence[Record], names: Sequence[str]) -> list[str]:
    """The run with the best headline, the best NLL and the smallest size, and the runs that are as good as it."""
    if len(runs) == 1:
        return _alone(runs[0], names[0])
    if not same_examples(runs):
        return ["The runs were not judged on the same test examples: compare their numbers with care."]
    table, losses = metrics_of(runs[0].metrics), [run.losses for run in runs]
    said = [_leader(runs, names, table[name], [of[name] for of in losses]) for name in losses[0]]
    said.append(_smallest(runs, names))
    return [sentence for sentence in said if sentence]


def _leader(runs: Sequence[Record], names: Sequence[str], metric: Metric, losses: list[np.ndarray]) -> str:
    """The best run by this metric, and the runs whose difference from it is within the sampling error."""
    row, unit = cells(runs, _predicted(metric)), metric.unit and f" {metric.unit}"
    praise = f"the {'highest' if metric.better == 'higher' else 'lowest'} {metric.words}"
    best = [i for i, cell in enumerate(row) if cell.best]
    if not best:
        return ""
    value = row[best[0]].text + unit
    if len(best) > 1:
        return f"{joined([names[i] for i in best])} share {praise}, {value}."
    rest = [i for i, cell in enumerate(row) if i != best[0] and cell.text != "–"]
    close = [i for i in rest if not distinguishable(losses[best[0]], losses[i])]
    claim = f"{names[best[0]]} has {praise}, {value}"
    if not close:
        return f"{claim}; every other run differs from it by more than this test set's sampling error."
    if len(close) == len(rest) and len(rest) > 1:
        return f"{claim}, but this test set cannot tell it from any of the other runs."
    others = joined([f"{names[i]} ({row[i].text}{unit})" for i in close])
    return f"{claim}; this test set cannot tell it from {others}."


def _smallest(runs: Sequence[Record], names: Sequence[str]) -> str:
    least = min(run.parameters for run in runs)
    smallest = [i for i, run in enumerate(runs) if run.parameters == least]
    size = _size(runs[smallest[0]])
    if len(smallest) > 1:
        return f"{joined([names[i] for i in smallest])} are the smallest: {size}."
    metric = next(iter(metrics_of(runs[0].metrics).values()))
    value = runs[smallest[0]].metrics.get(metric.name, math.nan)
    at = f", at {metric.words} {metric.show(value)}" if math.isfinite(value) else ""
    return f"{names[smallest[0]]} is the smallest: {size}{at}."


def _size(run: Record) -> str:
    return f"{run.parameters:,} parameters, {run.relative_size:.2f} times the size of the plain network"


def _alone(run: Record, name: str) -> list[str]:
    """For a single run, its accuracy with a confidence interval, or its error."""
    if isinstance(run, RegressionRecord):
        shown = {key: metric.show(run.metrics[key]) for key, metric in REGRESSION_METRICS.items()}
        return [
            f"{name} predicts {run.target} with a root mean squared error of {shown['rmse']}; {shown['coverage_90']} "
            "of the test examples lie in their 90% interval.",
            f"It stores {_size(run)}.",
        ]
    assert isinstance(run, RunRecord)
    low, high = wilson(float(run.correct.mean()), len(run.labels))
    return [
        f"{name} is right on {run.correct.mean():.2%} of the test examples; "
        f"the 95% interval of its accuracy is {low:.1%} to {high:.1%}.",
        f"It stores {_size(run)}.",
    ]


def distinguishable(loss: np.ndarray, other: np.ndarray) -> bool:
    """Whether the 95 % interval of the mean paired difference of two losses excludes zero."""
    difference = np.asarray(loss, float) - np.asarray(other, float)
    error = difference.std(ddof=1) / math.sqrt(len(difference)) if len(difference) > 1 else math.inf
    return bool(abs(difference.mean()) > 1.96 * error)

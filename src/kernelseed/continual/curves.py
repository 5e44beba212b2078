"""Results of a benchmark over its seeds: lines of a table, and curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from kernelseed.continual.benchmarks import BENCHMARKS, Result, benchmark, read_results_of
from kernelseed.errors import DataError
from kernelseed.plots import new_figure, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "fine-tune": "#9aa5b1",
    "ewc": "#8e5ea2",
    "vcl": "#d97706",
    "vcl-coreset": "#f2b25c",
    "vcl-ksn": "#2a7f62",
    "vcl-ksn-coreset": "#65b891",
    "joint": "#1f2933",
}


@dataclass(frozen=True)
class Line:
    """An approach over its seeds."""

    name: str
    label: str
    seeds: int
    relative_size: float
    """Trained parameters, as a share of the plain network's."""
    accuracies: list[float]
    """The average accuracy after the last task, by seed."""
    forgetting: float
    curves: list[list[float]]
    """The average accuracy after each task, by seed."""
    published: float | None

    @property
    def accuracy(self) -> str:
        """In per cent, with the standard deviation over seeds if there are several."""
        mean = f"{100 * statistics.fmean(self.accuracies):.1f}"
        return f"{mean} ± {100 * statistics.stdev(self.accuracies):.1f}" if self.seeds > 1 else mean

    def cells(self) -> list[str]:
        """For a table with `HEADING`."""
        published = "" if self.published is None else f"{100 * self.published:.1f}"
        forgetting = f"{100 * self.forgetting:.1f}"
        return [self.label, f"{self.relative_size:.2f}", self.accuracy, published, forgetting, str(self.seeds)]


HEADING = ["Approach", "RS", "average accuracy, %", "published", "forgetting, points", "seeds"]


def lines_of(name: str, results: Sequence[Result]) -> list[Line]:
    """One line for each approach that has results, in the benchmark's order."""
    lines = []
    for approach, group in groupby(results, key=lambda result: result["name"]):
        found = list(group)
        lines.append(
            Line(
                approach,
                found[0]["label"],
                len(found),
                found[0]["parameters"] / found[0]["plain_parameters"],
                [result["average_accuracy"] for result in found],
                statistics.fmean(result["forgetting"] for result in found),
                [result["averages"] for result in found],
                benchmark(name).published.get(approach),
            )
        )
    return lines


def draw_curves(results: Path) -> Figure:
    """The average accuracy after each task, a panel for each benchmark; a band is from the worst to the best seed."""
    found = {name: lines for name in BENCHMARKS if (lines := lines_of(name, read_results_of(name, results)))}
    if not found:
        raise DataError(f"{results} has no results of a benchmark; run one first: kernelseed continual split-mnist.")
    with new_figure(5.2 * len(found), 4) as figure:
        axes = figure.subplots(1, len(found), squeeze=False)[0]
        for axis, (name, lines) in zip(axes, found.items(), strict=True):
            _panel(axis, name, lines)
        known = {line.name: line.label for lines in found.values() for line in lines}
        for name, label in known.items():
            axes[0].plot([], [], color=COLOURS[name], label=label.partition(" δ")[0] if "δ" in label else label)
        figure.legend(loc="outside lower center", ncols=2 * len(found) + 1, frameon=False, fontsize=8)
        return figure


def _panel(axis: Axes, name: str, lines: Sequence[Line]) -> None:
    axis.set_title(benchmark(name).title, loc="left", fontsize=10)
    axis.set_xlabel("tasks learned")
    axis.set_ylabel("average accuracy over them, %")
    for line in lines:
        columns = [[100 * value for value in column] for column in zip(*line.curves, strict=True)]
        tasks = range(1, len(columns) + 1)
        axis.fill_between(tasks, [*map(min, columns)], [*map(max, columns)], color=COLOURS[line.name], alpha=0.2, lw=0)
        axis.plot(tasks, [*map(statistics.fmean, columns)], color=COLOURS[line.name], marker="o", ms=3, lw=1.5)
    axis.set_xticks(list(tasks))


def write_curves(results: Path, path: Path) -> None:
    """Draw them into a file, of the kind that its suffix says."""
    write_figure(draw_curves(results), path)

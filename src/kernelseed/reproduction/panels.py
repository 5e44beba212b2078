"""Figure 3 of the paper: accuracy against size, with a panel for each data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelseed.metrics import METRICS
from kernelseed.plots import new_figure, write_figure
from kernelseed.reproduction.plan import DATA
from kernelseed.reproduction.tables import Line, Table, paper_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = {  # model: colour and marker
    "KSN-E": ("#2a7f62", "o"),
    "KSN-P": ("#65b891", "s"),
    "FKSN": ("#3b6fb6", "^"),
    "BNN-E": ("#d97706", "o"),
    "BNN-P": ("#f2b25c", "s"),
    "MC-Drop": ("#8e5ea2", "D"),
    "VOGN": ("#b03a48", "v"),
    "Baseline": ("#1f2933", "*"),
}


def draw_figure(
    results: Mapping[str, Mapping[str, Sequence[dict[str, Any]]]], presets: Mapping[str, str] | str = "paper"
) -> Figure:
    """The figure from the results, by data set and network. Filled markers are ours, hollow ones the paper's.

    Filled markers with a black rim are this library's own recipe. Bars are standard deviations over seeds. `presets`
    says which preset the results of each data set are of.
    """
    with new_figure(9.2, 6.9) as figure:
        axes = figure.subplots(2, 2).flatten()
        for axis, name in zip(axes, DATA, strict=True):
            preset = presets if isinstance(presets, str) else presets[name]
            _panel(axis, paper_table(name, results.get(name, {}), preset))
        for model, (colour, marker) in SERIES.items():
            axes[0].plot([], [], marker, color=colour, ls="none", label=model)
        figure.legend(loc="outside lower center", ncols=len(SERIES), frameon=False, fontsize=8, handletextpad=0.1,
                      title="hollow: the paper; filled: ours; with a black rim: this library's own recipe; bars: seeds",
                      title_fontsize=8)  # fmt: skip
        return figure


def _panel(axis: Axes, shown: Table) -> None:
    axis.set_title(f"{shown.title}, preset {shown.preset}", loc="left")
    axis.set_xlabel("parameters, relative to the plain network")
    axis.set_ylabel(METRICS["accuracy"].words)
    for model in SERIES:
        lines = [line for line in shown.lines if line.row.model == model and line.row.name != "Baseline DR"]
        _series(axis, model, [(line.relative[1], line.cells["accuracy"].paper, 0.0) for line in lines], ours=False)
        _series(axis, model, [point for line in lines if (point := _our_point(line))], ours=True)
        own = [point for line in shown.own_lines if line.row.model == model and (point := _our_point(line))]
        _series(axis, model, own, ours=True, ring=True)


Point = tuple[float, float, float]
"""Relative size, accuracy, and its standard deviation over seeds."""


def _our_point(line: Line) -> Point | None:
    size, accuracy = line.relative[0], line.cells["accuracy"]
    return None if size is None or accuracy.ours is None else (size, accuracy.ours, accuracy.spread or 0.0)


def _series(axis: Axes, model: str, points: list[Point], ours: bool, ring: bool = False) -> None:
    colour, marker = SERIES[model]
    points = sorted(points)
    sizes, accuracies = [size for size, *_ in points], [accuracy for _, accuracy, _ in points]
    if any(spread for *_, spread in points):
        axis.vlines(sizes, *zip(*((a - s, a + s) for _, a, s in points), strict=True), color=colour, lw=1.2)
    axis.plot(
        sizes,
        accuracies,
        marker=marker,
        color=colour,
        markerfacecolor=colour if ours else "none",
        markeredgecolor="black" if ring else colour,
        alpha=1.0 if ours else 0.45,
        ls="-" if ours else ":",
        lw=1,
        ms=6,
    )


def figure_points(figure: Figure) -> str:
    """Every point of a figure as text, one line per panel."""
    import numpy

    return "\n".join(
        f"{axis.get_title(loc='left')}: "
        + " ".join(f"({x:.3f}, {y:.4f})" for line in axis.lines for x, y in numpy.asarray(line.get_xydata()))
        for axis in figure.axes
    )


def write_panels(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.svg, which also holds its points as text, and `stem`.png."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")]
    for path in paths:
        write_figure(figure, path, figure_points(figure))
    return paths

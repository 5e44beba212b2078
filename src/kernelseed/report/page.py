"""One self-contained HTML file that compares runs, without scripts or downloads."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import DictLoader, Environment
from markupsafe import Markup

from kernelseed.errors import ArgumentError, PathExistsError
from kernelseed.metrics import METRICS, REGRESSION_METRICS, Metric, reliability, risk_coverage
from kernelseed.report import figures, findings, gallery, numbers, ood_section, promises, pruning_section, shift_section
from kernelseed.report.record import Record, RegressionRecord, RunRecord
from kernelseed.report.sections import Panel, Section, Shown
from kernelseed.report.svg import RUN_COLOURS_DARK, RUN_COLOURS_LIGHT, look, percent
from kernelseed.system import printable, write_text

TITLE = "What the networks know, and what they do not"


SECTIONS: tuple[Callable[[Sequence[Shown]], Section | None], ...] = (
    shift_section.section,
    ood_section.section,
    pruning_section.section,
)
"""What is shown where a run holds it, each made in a file of its own: see `sections`."""


def render(runs: Sequence[Record], title: str = TITLE) -> str:
    """The page as a string."""
    if not runs:
        raise ArgumentError("runs is empty; a report compares runs: give at least one RunRecord.")
    if len(kinds := {type(run) for run in runs}) > 1:
        raise ArgumentError("runs are of classification and of regression, which can't be compared: report them apart.")
    is_numbers = kinds == {RegressionRecord}
    shown = [Shown(run, name, look(i)) for i, (run, name) in enumerate(zip(runs, _names(runs), strict=True))]
    here = files("kernelseed.report")
    templates = DictLoader({name: here.joinpath(name).read_text("utf-8") for name in ("page.html", "numbers.html")})
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=templates)
    columns = findings.REGRESSION_COLUMNS if is_numbers else findings.COLUMNS
    return page.get_template("page.html").render(
        title=title,
        style=Markup(here.joinpath("style.css").read_text("utf-8")),
        colours=list(zip(RUN_COLOURS_LIGHT, RUN_COLOURS_DARK, strict=True)),
        runs=shown,
        compared=findings.what_was_compared(runs),
        sentences=findings.sentences(runs, [one.name for one in shown]),
        metrics=[column.metric for column in columns],
        rows=list(zip(shown, zip(*(findings.cells(runs, column) for column in columns), strict=True), strict=True)),
        sizes=_sizes(shown, REGRESSION_METRICS["rmse"] if is_numbers else METRICS["accuracy"]),
        curves=_curves(shown),
        written=_written,
        **(_of_numbers(shown) if is_numbers else _of_classes(shown)),
    )


def _of_classes(shown: Sequence[Shown]) -> dict[str, Any]:
    """What the page says of classifiers alone."""
    return {
        "reliability": [_reliability(one) for one in shown],
        "confidence": [_confidence(one) for one in shown],
        "risk": _risk(shown),
        "risk_rows": [(one, _risk_row(one.run)) for one in shown],
        "risks": [percent(risk) for risk in promises.RISKS],
        "kept_risks": [(one, promises.kept_risks(one.run)) for one in shown if one.run.validation is not None],
        "set_coverage": percent(promises.COVERAGE),
        "sets": [
            (one, row) for one in shown if one.run.validation is not None and (row := promises.held_sets(one.run))
        ],
        "sections": [section for make in SECTIONS if (section := make(shown)) is not None],
        "uncertain": [(one, *_images(one.run)) for one in shown if one.run.images is not None],
    }


def _of_numbers(shown: Sequence[Shown]) -> dict[str, Any]:
    """What the page says of regression alone."""
    runs = [(one.name, one.run, one.look) for one in shown]
    varying = [one for one in shown if numbers.varies(one.run)]
    rmse = REGRESSION_METRICS["rmse"]
    notes = [f"{rmse.title} {rmse.show(one.run.metrics['rmse'])}" for one in shown]
    drawn = [numbers.predicted_against_true(one.run, one.look, one.name) for one in shown]
    return {
        "numbers": {
            "predicted": [Panel(svg, one, note) for svg, one, note in zip(drawn, shown, notes, strict=True)],
            "coverage": numbers.coverage_curves(runs),
            "parts": [(one, numbers.parts_row(one.run)) for one in shown],
            "errors": [Panel(numbers.error_against_std(one.run, one.look, one.name), one) for one in varying],
            "sure": numbers.error_when_sure([(one.name, one.run, one.look) for one in varying]) if varying else "",
        }
    }


def write(runs: Sequence[Record], path: str | os.PathLike[str], title: str = TITLE, *, overwrite: bool = False) -> Path:
    """Write the page to `path`, completely or not at all."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise PathExistsError(f"{path} exists; choose another name, or pass overwrite=True to replace it.")
    write_text(path, printable(render(runs, title), kept=" \n\t"))
    return path


def _names(runs: Sequence[Record]) -> list[str]:
    """The labels of the runs; if two runs have the same label, with the names of their folders."""
    seen = Counter(run.label for run in runs)
    return [run.label if seen[run.label] == 1 else f"{run.label} ({run.name})" for run in runs]


def _sizes(shown: Sequence[Shown], headline: Metric) -> list[Panel]:
    plain = {one.run.plain_parameters for one in shown}
    reference = (float(plain.pop()), "plain network") if len(plain) == 1 else None
    panels = []
    for metric in (headline, METRICS["nll"]):
        points = [
            figures.Point(one.name, one.run.parameters, one.run.metrics[metric.name], one.look)
            for one in shown
            if math.isfinite(one.run.metrics.get(metric.name, math.nan))
        ]
        if points:
            title = f"{metric.meaning} ({metric.better} is better)"
            panels.append(Panel(figures.scatter(points, "parameters", title, reference=reference)))
    return panels


def _reliability(one: Shown) -> Panel:
    bins, ece = reliability(torch.tensor(one.run.probs), torch.tensor(one.run.labels)), METRICS["ece"]
    return Panel(figures.reliability_diagram(bins, one.look, one.name), one, f"{ece.title} {ece.show(bins.ece)}")


def _confidence(one: Shown) -> Panel:
    sure, correct = one.run.confidence, one.run.correct
    shares = figures.Histogram.of(sure[correct], sure[~correct], 0.0, 1.0)
    right, wrong = f"{correct.sum():,} right", f"{(~correct).sum():,} wrong"
    return Panel(figures.back_to_back(shares, one.look, "confidence", right, wrong, x_show=percent), one)


def _risk_coverage(run: RunRecord) -> tuple[np.ndarray, np.ndarray]:
    coverage, risk = risk_coverage(torch.tensor(run.confidence), torch.tensor(run.correct))
    return coverage.numpy(), risk.numpy()


def _risk(shown: Sequence[Shown]) -> Markup:
    series = [figures.Series(one.name, *_risk_coverage(one.run), one.look) for one in shown]
    return figures.lines(
        series,
        "share of examples answered",
        "error rate among them",
        x_show=percent,
        y_show=percent,
        from_zero=True,
    )


def _risk_row(run: RunRecord) -> list[str]:
    """The error rate when at least 100, 90, 80 and 50 % of the examples are answered."""
    coverage, risk = _risk_coverage(run)
    answered = [min(int(np.searchsorted(coverage, share)), len(risk) - 1) for share in (1.0, 0.9, 0.8, 0.5)]
    return [f"{risk[i]:.2%}" for i in answered]


def _images(run: RunRecord) -> tuple[list[gallery.Tile], list[gallery.Tile]]:
    return gallery.most_uncertain(run), gallery.confidently_wrong(run)


def _curves(shown: Sequence[Shown]) -> list[Panel]:
    """One figure per kind of curve, in the order of their first appearance.

    A run that predicts in several ways was trained once, so only its first record is shown.
    """
    shown = list({one.run.name: one for one in reversed(shown)}.values())[::-1]
    kinds = dict.fromkeys(kind for one in shown for kind in one.run.curves)
    panels = []
    for kind in kinds:
        series = [
            figures.Series(one.name, one.run.curves[kind][0], one.run.curves[kind][1], one.look)
            for one in shown
            if kind in one.run.curves and len(one.run.curves[kind][0])
        ]
        if series:
            panels.append(Panel(figures.lines(series, "epoch", kind.replace("_", " "))))
    return panels


def _written(value: dict) -> str:
    return json.dumps(value, indent=2, default=str, ensure_ascii=False)

"""One self-contained HTML file that compares runs, without scripts or downloads."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from jinja2 import Environment
from markupsafe import Markup

from kernelseed.core import printable, write_text
from kernelseed.errors import ArgumentError, PathExistsError
from kernelseed.metrics import METRICS, auroc, reliability, risk_coverage
from kernelseed.report import figures, findings, gallery, promises
from kernelseed.report.record import RunRecord
from kernelseed.report.svg import RUN_COLOURS_DARK, RUN_COLOURS_LIGHT, Look, chip, look, percent

TITLE = "What the networks know, and what they do not"


@dataclass(frozen=True)
class Shown:
    """A run with its name and look, which are the same in every figure."""

    run: RunRecord
    name: str
    look: Look

    @property
    def chip(self) -> Markup:
        """The run's marker, for use in a line of text."""
        return chip(self.look)


@dataclass(frozen=True)
class Panel:
    """One figure of a section, with the run that it belongs to."""

    svg: Markup
    of: Shown | None = None
    note: str = ""


def render(runs: Sequence[RunRecord], title: str = TITLE) -> str:
    """The page as a string."""
    if not runs:
        raise ArgumentError("runs is empty; a report compares runs: give at least one RunRecord.")
    shown = [Shown(run, name, look(i)) for i, (run, name) in enumerate(zip(runs, _names(runs), strict=True))]
    here = files("kernelseed.report")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        here.joinpath("page.html").read_text("utf-8")
    )
    return page.render(
        title=title,
        style=Markup(here.joinpath("style.css").read_text("utf-8")),
        colours=list(zip(RUN_COLOURS_LIGHT, RUN_COLOURS_DARK, strict=True)),
        runs=shown,
        compared=findings.what_was_compared(runs),
        sentences=findings.sentences(runs, [one.name for one in shown]),
        columns=findings.COLUMNS,
        rows=list(zip(*(findings.cells(runs, column) for column in findings.COLUMNS), strict=True)),
        sizes=_sizes(shown),
        reliability=[_reliability(one) for one in shown],
        confidence=[_confidence(one) for one in shown],
        risk=_risk(shown),
        risk_rows=[(one, _risk_row(one.run)) for one in shown],
        risks=[percent(risk) for risk in promises.RISKS],
        kept_risks=[(one, promises.kept_risks(one.run)) for one in shown if one.run.validation is not None],
        set_coverage=percent(promises.COVERAGE),
        sets=[(one, row) for one in shown if one.run.validation is not None and (row := promises.held_sets(one.run))],
        ood=_ood(shown),
        uncertain=[(one, *_images(one.run)) for one in shown if one.run.images is not None],
        curves=_curves(shown),
        written=_written,
    )


def write(
    runs: Sequence[RunRecord], path: str | os.PathLike[str], title: str = TITLE, *, overwrite: bool = False
) -> Path:
    """Write the page to `path`, completely or not at all."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise PathExistsError(f"{path} exists; choose another name, or pass overwrite=True to replace it.")
    write_text(path, printable(render(runs, title), kept=" \n\t"))
    return path


def _names(runs: Sequence[RunRecord]) -> list[str]:
    """The labels of the runs; if two runs have the same label, with the names of their folders."""
    seen = Counter(run.label for run in runs)
    return [run.label if seen[run.label] == 1 else f"{run.label} ({run.name})" for run in runs]


def _sizes(shown: Sequence[Shown]) -> list[Panel]:
    plain = {one.run.plain_parameters for one in shown}
    reference = (float(plain.pop()), "plain network") if len(plain) == 1 else None
    panels = []
    for metric in (METRICS["accuracy"], METRICS["nll"]):
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


def _ood(shown: Sequence[Shown]) -> list[Panel]:
    given = [(one, one.run.ood_entropy) for one in shown if one.run.ood_entropy is not None]
    high = max((float(max(one.run.entropy.max(), out.max())) for one, out in given), default=1.0) or 1.0
    panels = []
    for one, out in given:
        shares = figures.Histogram.of(one.run.entropy, out, 0.0, high)
        area = auroc(torch.tensor(one.run.entropy), torch.tensor(out))
        inside, outside = findings.data_name(one.run) or "test data", one.run.ood_name or "out-of-distribution data"
        svg = figures.back_to_back(shares, one.look, "entropy in nats", inside, outside)
        panels.append(Panel(svg, one, f"AUROC {area:.3f}"))
    return panels


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
            figures.Series(one.name, *one.run.curves[kind], one.look)
            for one in shown
            if kind in one.run.curves and len(one.run.curves[kind][0])
        ]
        if series:
            panels.append(Panel(figures.lines(series, "epoch", kind.replace("_", " "))))
    return panels


def _written(value: dict) -> str:
    return json.dumps(value, indent=2, default=str, ensure_ascii=False)

"""What `kernelseed evaluate` found beside its metrics, as tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from kernelseed.cli.show import literal, narrow_table
from kernelseed.core import SCORES
from kernelseed.metrics import METRICS
from kernelseed.training import MEASURED, average_curve


def shift_tables(found: dict[str, Any]) -> list[Table]:
    """For each way to predict: accuracy by corruption and severity; then accuracy, NLL and ECE of their mean."""
    shift = found.get("shift", {"curves": {}})
    tables = []
    for way in _ordered(shift["curves"]):
        curves = shift["curves"][way]
        title = f"{literal(found['labels'][way])}, {shift['images']:,} images, by severity"
        table = narrow_table(["Corruption", "Metric"], [str(severity) for severity in shift["severities"]], title)
        for name, curve in curves.items():
            table.add_row(name, METRICS["accuracy"].heading, *map(METRICS["accuracy"].show, curve["accuracy"]))
        table.add_section()
        for key in MEASURED:
            table.add_row("mean", METRICS[key].heading, *map(METRICS[key].show, average_curve(curves, key)))
        tables.append(table)
    return tables


def ood_tables(found: dict[str, Any]) -> list[Table]:
    """For each data set: AUROC, AUPR and FPR by each score."""
    tables = []
    for other in found.get("ood", {"sets": []})["sets"]:
        converted = f" ({other['converted']})" if other["converted"] else ""
        title = f"{literal(found['config']['data'])} against {literal(other['name'])}{converted}"
        table = narrow_table(["Model", "Score"], ["AUROC ↑", "AUPR ↑", "FPR at 95 % ↓"], title)
        for way in _ordered(other["scores"]):
            for score in [score for score in SCORES if score in other["scores"][way]]:
                measured = other["scores"][way][score].values()
                label = literal(found["labels"][way])
                table.add_row(label, score.replace("_", " "), *(f"{value:.4f}" for value in measured))
        tables.append(table)
    return tables


def _ordered(by_way: dict[str, Any]) -> list[str]:
    return [way for way in ("ensemble", "mean") if way in by_way]

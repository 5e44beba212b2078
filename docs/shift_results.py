"""The tables and the figure of docs/shift.md, from results/shift/*.json: what `kernelseed evaluate --json` printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernelseed.data import CORRUPTIONS
from kernelseed.metrics import METRICS
from kernelseed.report.ood_section import MEASURES, TITLES
from kernelseed.reproduction import short_commit
from kernelseed.training import MEASURED, average_curve

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("baseline", "dropout", "bnn", "ksn")
COLOURS = {"baseline": "#1f2933", "dropout": "#8e5ea2", "bnn": "#d97706", "ksn": "#2a7f62"}
COMMAND = "kernelseed evaluate RUN --shift all --shift-images 500 --samples 5 --ood mnist,kmnist --json"


def results() -> list[dict[str, Any]]:
    """One for each run, in the order of the page."""
    return [json.loads((ROOT / f"results/shift/{name}.json").read_text(encoding="utf-8")) for name in ORDER]


def rows() -> list[tuple[str, dict[str, Any], str]]:
    """(label, result, way) of each way to predict, the average over draws before the mean."""
    ways = ("ensemble", "mean")
    return [(found["labels"][way], found, way) for found in results() for way in ways if way in found["metrics"]]


def table(heading: list[str], lines: list[list[str]]) -> str:
    align = ["---", *("---:" for _ in heading[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [heading, align, *lines])


def best_marked(values: list[list[float | None]], better: list[str], digits: int) -> list[list[str]]:
    """The numbers as text, the best of each column in bold, also where several share it."""
    shown = [["–" if value is None else f"{value:.{digits}f}" for value in line] for line in values]
    for column, direction in enumerate(better):
        known = [float(line[column]) for line in shown if line[column] != "–"]
        best = f"{(max if direction == 'higher' else min)(known):.{digits}f}"
        for line in shown:
            line[column] = f"**{line[column]}**" if line[column] == best else line[column]
    return shown


def shift_table() -> str:
    """Means over corruptions at severity 0, 1, 3 and 5."""
    chosen = [(METRICS[key], severity) for key in MEASURED for severity in (0, 1, 3, 5)]
    values = [
        [average_curve(found["shift"]["curves"][way], metric.name)[severity] for metric, severity in chosen]
        for _, found, way in rows()
    ]
    shown = best_marked(values, [metric.better for metric, _ in chosen], 3)
    heading = ["Model", "RS", *(f"{metric.title} {severity} {metric.arrow}" for metric, severity in chosen)]
    sizes = [f"{found['parameters']['relative']:.2f}" for _, found, _ in rows()]
    lines = [[label, size, *line] for (label, _, _), size, line in zip(rows(), sizes, shown, strict=True)]
    return f"{table(heading, lines)}\n\n{came_from()}"


def corruption_table() -> str:
    """The accuracy at severity 3 for each corruption, by the average over draws where a run has one."""
    chosen = [(label, found, way) for label, found, way in rows() if way == list(found["metrics"])[-1]]
    names = list(chosen[0][1]["shift"]["curves"]["mean"])
    values = [[found["shift"]["curves"][way][name]["accuracy"][3] for name in names] for _, found, way in chosen]
    shown = best_marked(values, ["higher"] * len(names), 3)
    return table(["Model", *names], [[label, *line] for (label, _, _), line in zip(chosen, shown, strict=True)])


def level_table() -> str:
    """What each corruption's levels are."""
    lines = [[name, one.means, ", ".join(f"{level:g}" for level in one.levels)] for name, one in CORRUPTIONS.items()]
    return table(["name", "a level is", "severity 1 to 5"], lines)


def ood_table(measure: str) -> str:
    """One measure of each score, against each data set."""
    better = MEASURES[measure][1]
    sets = [other["name"] for other in results()[0]["ood"]["sets"]]
    columns = [(number, score) for number in range(len(sets)) for score in TITLES]
    values = [
        [found["ood"]["sets"][number]["scores"][way].get(score, {}).get(measure) for number, score in columns]
        for _, found, way in rows()
    ]
    shown = best_marked(values, [better] * len(columns), 3)
    heading = ["Model", *(f"{sets[number]}: {TITLES[score][0].lower()}" for number, score in columns)]
    return table(heading, [[label, *line] for (label, _, _), line in zip(rows(), shown, strict=True)])


def came_from() -> str:
    found = results()
    config, commits = found[0]["config"], sorted({short_commit(one["commit"]) for one in found})
    return (
        f"{config['data']}, ResNet-18 of width {config['width']}, {config['epochs']} epochs, seed {config['seed']}, "
        f"{found[0]['settings']['samples']} draws, {found[0]['shift']['images']:,} test images a setting. From "
        f"[`results/shift`](../results/shift), made by `{COMMAND}` at commit {', '.join(commits)} with torch "
        f"{found[0]['versions']['torch']} on an {found[0]['processor']}."
    )


def draw(path: Path) -> None:
    """Accuracy, NLL and ECE against severity: means over corruptions, and quartiles as bands."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
    for label, found, way in rows():
        colour, curves = COLOURS[found["config"]["method"]], found["shift"]["curves"][way]
        for axis, key in zip(axes, MEASURED, strict=True):
            values = np.array([curve[key] for curve in curves.values()])
            dash = {"ls": "--", "lw": 1.2} if way == "mean" and "ensemble" in found["metrics"] else {"lw": 2}
            axis.plot(range(6), values.mean(0), color=colour, label=label, **dash)
            if "ls" not in dash:
                axis.fill_between(range(6), *np.quantile(values, [0.25, 0.75], axis=0), color=colour, alpha=0.07, lw=0)
    for axis, key in zip(axes, MEASURED, strict=True):
        axis.set(xlabel="severity", title=METRICS[key].meaning, xlim=(0, 5), xticks=range(6))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(rows()), frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)

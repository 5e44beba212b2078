"""The docs' figures: from committed results, and from the regression example, which is trained in seconds."""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pruned
import recipe_results
import shift_results
import torch
from benchmark_tables import results

import kernelseed as ks
from kernelseed.reproduction import draw_figure, read_results, write_panels
from kernelseed.training.learning_rate import lr_factor

ROOT = Path(__file__).resolve().parent.parent
INK, SOFT, SEED, WARM = "#1f2933", "#9aa5b1", "#2a7f62", "#d97706"
STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "svg.hashsalt": "kernelseed",
}


def write_all(root: Path) -> None:
    plt.rcParams.update(STYLE)
    folder = root / "docs" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    hero(folder / "hero.png")
    measured = next(iter(results().values()))  # one figure, of the first kind of processor
    scaling(measured["scaling"], measured["memory_scaling"], folder / "scaling.svg")
    schedules(folder / "schedules.svg")
    decisions(json.loads((root / "results/decisions.json").read_text(encoding="utf-8")), folder / "decisions.svg")
    reproduction(root)
    ks.continual.write_curves(root / "results" / "continual", folder / "continual.svg")
    shift_results.draw(folder / "shift.svg")
    pruned.draw(folder / "pruning.png")
    recipe_results.draw(folder / "recipe.svg")


def decisions(found: dict[str, Any], path: Path) -> None:
    """Error rates of answers over many splits, and how often sets hold the label of each class."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=(1, 1.25), layout="constrained")
    settings, splits = found["settings"], found["splits"]
    errors = {name: [100 * split[name]["error"] for split in splits] for name in ("plug_in", "bound")}
    low, high = min(map(min, errors.values())), max(map(max, errors.values()))
    edges = [low + i * (high - low) / 30 for i in range(31)]
    for name, label, colour in (("plug_in", "5 % in validation", WARM), ("bound", "with a bound", SEED)):
        left.hist(errors[name], edges, color=colour, alpha=0.8, label=label)
    left.axvline(100 * settings["risk"], color=INK, lw=1, ls="--")
    left.set(xlabel="wrong answers to new images, %", ylabel=f"of {len(splits)} splits", yticks=[0, 10, 20, 30])
    left.legend(frameon=False, fontsize=9)
    left.set_title("Risk 5 %: how often it is kept", loc="left", fontsize=11)
    kinds = (("sets", "for all together", SOFT, -0.2), ("sets_by_class", "by_class=True", SEED, 0.2))
    for name, label, colour, offset in kinds:
        rows = [split[name]["by_class"] for split in splits]
        means = [100 * sum(row[k] for row in rows) / len(rows) for k in range(len(found["classes"]))]
        right.bar([k + offset for k in range(len(means))], means, 0.38, color=colour, label=label)
    right.axhline(100 * settings["coverage"], color=INK, lw=1, ls="--")
    right.set(ylim=(60, 104), ylabel="sets that hold the class, %")
    right.set_xticks(range(len(found["classes"])), found["classes"], rotation=40, ha="right", fontsize=8)
    right.legend(frameon=False, fontsize=9, ncols=2, loc="upper left")
    right.set_title("Coverage 90 %: class by class", loc="left", fontsize=11)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def schedules(path: Path) -> None:
    """The learning rate's factor over a run."""
    figure, axis = plt.subplots(figsize=(6, 2.2), layout="constrained")
    for name, warmup, colour in (("constant", 100, SOFT), ("cosine", 100, SEED), ("onecycle", 0, WARM)):
        factors = [lr_factor(name, step, 1000, warmup) for step in range(1000)]
        axis.plot(factors, color=colour, label=f"{name}, warmup {warmup}" if warmup else name, lw=1.8)
    axis.set(xlabel="step", ylabel="factor of lr", ylim=(0, 1.05), xlim=(0, 1000))
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def reproduction(root: Path) -> None:
    """Figure 3: the largest preset that was run of each data set."""
    from build import presets_shown

    presets = presets_shown()
    results = {data: read_results(root / "results" / preset / data) for data, preset in presets.items()}
    write_panels(draw_figure(results, presets), root / "docs" / "figures" / "reproduction")


def hero(path: Path) -> None:
    """What it is for, in two panels: it knows where it has seen no data, and it is small."""
    with tempfile.TemporaryDirectory() as scratch:
        sys.argv = ["regression_bands.py", f"{scratch}/bands.png"]
        shown = runpy.run_path(str(ROOT / "examples" / "regression_bands.py"))
    plt.rcParams.update(STYLE)
    x, y, grid, p, net = (shown[name] for name in ("x", "y", "grid", "p", "net"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(1.75, 1), layout="constrained")
    g, mean = grid[:, 0], p.mean[:, 0]
    for label, colour, std in (
        ("noise in the data on top", "#dcebe5", p.std[:, 0]),
        ("doubt, and six draws", "#a3cdbd", p.epistemic[:, 0].sqrt()),
    ):
        left.fill_between(g, mean - 2 * std, mean + 2 * std, color=colour, lw=0, label=label)
    left.plot(x, y, "o", color=INK, ms=1.6, alpha=0.5, mew=0)
    left.plot(g, mean, color=SEED, lw=2, label="mean")
    left.set(xlim=(-13, 13), ylim=left.get_ylim(), xticks=[], yticks=[])  # the bands' limits; a draw may go beyond
    with torch.no_grad():
        curves = torch.cat([net.draw()(grid) for _ in range(6)], 1)
    left.plot(g, curves, color="white", lw=0.8, alpha=0.9, zorder=1.5)
    left.legend(frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(-0.02, 0.01), fontsize=9, reverse=True)
    left.set_title("A kernel seed network is unsure where it has seen no data", loc="left", fontsize=11)

    with torch.device("meta"):
        model = ks.models.resnet18(10, 1)
        nets = {
            "plain ResNet-18": model,
            "Bayesian (BNN)": ks.bayesianize(model),
            "kernel seeds, δ=.25": ks.germinate(model, 0.25, over="weights"),
        }
    sizes = {name: sum(q.numel() for q in net.parameters()) / 1e6 for name, net in nets.items()}
    bars = right.barh(list(sizes)[::-1], list(sizes.values())[::-1], color=[SEED, WARM, SOFT], height=0.55)
    right.bar_label(bars, [f"{size:.1f}M" for size in list(sizes.values())[::-1]], padding=4)
    right.set(xlim=(0, 27), xticks=[])
    right.spines["bottom"].set_visible(False)
    right.tick_params(left=False)
    right.set_title("... and smaller than the plain one", loc="left", fontsize=11)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def scaling(measured: dict[str, Any], memory: dict[str, Any], path: Path) -> None:
    """Step time against batch size, delta, width and draws; memory against batch size."""
    figure, axes = plt.subplots(1, 5, figsize=(13, 2.8), layout="constrained")

    def series(prefix: str) -> list[tuple[float, dict[str, Any]]]:
        return [(float(key.split()[1]), value) for key, value in measured.items() if key.startswith(prefix + " ")]

    for axis, prefix in ((axes[0], "batch"), (axes[2], "width")):
        points = series(prefix)
        for name, colour in (("plain", SOFT), ("KSN .25", SEED)):
            axis.plot([n for n, _ in points], [v[name]["ms"] for _, v in points], "o-", color=colour, label=name, ms=4)
        axis.set(xlabel=f"{prefix} size" if prefix == "batch" else prefix, ylabel="ms a step", ylim=(0, None))
    axes[0].legend(frameon=False)
    deltas = {float(name.split()[1]): v["ratio"] for name, v in measured["delta"].items() if name != "plain"}
    axes[1].plot(list(deltas), list(deltas.values()), "o-", color=SEED, ms=4)
    axes[1].set(xlabel="δ", ylabel="plain steps", ylim=(0, None))
    draws = {int(name.split()[-1]): v["ratio"] for name, v in measured["draws"].items() if name != "plain"}
    axes[3].plot(list(draws), list(draws.values()), "o-", color=SEED, ms=4)
    axes[3].set(xlabel="draws a step", ylabel="plain steps", ylim=(0, None), xticks=list(draws))
    batches = {int(name.split()[1]): v["MB"] for name, v in memory.items() if name.startswith("batch")}
    axes[4].plot(list(batches), list(batches.values()), "o-", color=SEED, ms=4)
    axes[4].set(xlabel="batch size", ylabel="MB at the peak", ylim=(0, None))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)

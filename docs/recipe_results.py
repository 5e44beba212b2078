"""The tables and the figure of recipe.md and recipe-choices.md, from the result files of experiments/recipe."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from benchmark_tables import table

from kernelseed import metrics
from kernelseed.metrics import METRICS
from kernelseed.reproduction import read_log_probs, short_commit
from kernelseed.reproduction.result_files import read_result

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results/recipe"
KEYS = ("accuracy", "nll", "ece")
TOGETHER = 3
"""The networks of a deep ensemble: one for each seed."""
NAMED = ("width", "dropout_in", "sigma", "kl", "temperature", "rho_lr")
"""The settings that a network's label says."""


@dataclass(frozen=True)
class Entry:
    """A network of a study, or several that predict together: its numbers, seed by seed."""

    label: str
    parameters: int
    found: Sequence[dict[str, float]]

    def values(self, key: str) -> list[float]:
        return [each[key] for each in self.found]

    def mean(self, key: str) -> float:
        return statistics.mean(self.values(key))

    def shown(self, key: str) -> str:
        text = METRICS[key].show(self.mean(key))
        return f"{text} ± {statistics.stdev(self.values(key)):.4f}" if len(self.found) > 1 else text


def studies() -> dict[str, dict[str, Any]]:
    """What is listed in `runs.yaml`, by name."""
    return yaml.safe_load((ROOT / "experiments/recipe/runs.yaml").read_text(encoding="utf-8"))["studies"]


def listed(study: str) -> dict[str, dict[str, Any]]:
    """What each run of a study changes."""
    return studies()[study]["runs"]


def results_of(study: str) -> dict[str, list[dict[str, Any]]]:
    """The results of a study, seed by seed, in the order of its list."""
    found = {name: sorted((RESULTS / study).glob(f"{name}-seed-*.json")) for name in listed(study)}
    return {name: [read_result(path) for path in paths] for name, paths in found.items() if paths}


def way_of(result: dict[str, Any]) -> str:
    """Ten draws where there are draws."""
    return "ensemble" if "ensemble" in result["metrics"] else "mean"


def label_of(study: str, name: str, result: dict[str, Any]) -> str:
    """The method, and what else the run changes."""
    flat = flattened(listed(study)[name])
    others = "".join(f", {setting.replace('_', ' ')} {flat[setting]}" for setting in NAMED if setting in flat)
    label = result["labels"][way_of(result)].replace("Baseline", "plain")
    if flat.get("over") == "weights":  # the paper's kind, which its tables call KSN
        label = label.replace("KSN-E", "KSN-E weights")
    return label + others


def base_of(name: str) -> str:
    """The run of which another is a variant with other sigmas; else its own name."""
    return re.sub(r"-(cold|drifting|sigma-.+)$", "", name)


def is_variant(name: str) -> bool:
    """Whether a run is another one with other sigmas."""
    return base_of(name) != name


def differs_in_size(study: str, name: str) -> bool:
    """Whether a run is a plain network or the recipe, of whatever size."""
    return flattened(listed(study)[name]).keys() <= {"method", "width", "budget", "seeds"}


def entries(study: str, suffix: str = "") -> dict[str, Entry]:
    """The networks of a study, by name, with BatchNorm's running statistics or (" bn") with those of each draw."""
    return {
        name: Entry(
            label_of(study, name, runs[0]),
            runs[0]["parameters"]["stored"],
            [{**run["metrics"][f"{way_of(run)}{suffix}"], "too_sure": too_sure(run)} for run in runs],
        )
        for name, runs in results_of(study).items()
    }


def too_sure(run: dict[str, Any]) -> float:
    """How much larger the mean confidence is than the accuracy."""
    log_probs, labels = read_log_probs(Path(run["log_probs"]))
    probs = _probs(log_probs[way_of(run)])
    return float(probs.max(1).mean() - (probs.argmax(1) == labels).mean())


def together(study: str) -> dict[str, Entry]:
    """Networks of several seeds that predict together, by the name of the single one."""
    found = {}
    for name, runs in results_of(study).items():
        if len(runs) == TOGETHER:
            kept = [read_log_probs(Path(run["log_probs"])) for run in runs]
            probs = np.mean([_probs(log_probs[way_of(run)]) for run, (log_probs, _) in zip(runs, kept, strict=True)], 0)
            labels = torch.from_numpy(kept[0][1].astype(np.int64))
            summary = metrics.summary(torch.from_numpy(probs), labels)
            summary["too_sure"] = float(probs.max(1).mean()) - summary["accuracy"]
            found[name] = Entry(
                f"{TOGETHER} x {label_of(study, name, runs[0])}", TOGETHER * runs[0]["parameters"]["stored"], [summary]
            )
    return found


def _probs(log_probs: np.ndarray) -> np.ndarray:
    return torch.from_numpy(log_probs.astype(np.float64)).softmax(1).numpy()


def on_test_set(study: str, up: str = "../", short: bool = False) -> Callable[[], str]:
    """The networks of a study on the test set, without variants of the recipe; `up` leads to the root."""

    def build() -> str:
        found, runs = entries(study), results_of(study)
        if "plain" not in found:
            return f"Not run yet: `{command(study)}`."
        plain = found["plain"].parameters
        sure = [] if short else ["too sure by"]
        heading = ["Network", "Params", "RS", *(METRICS[key].heading for key in KEYS), *sure, "seeds"]
        rows = [
            [
                entry.label,
                f"{entry.parameters / 1e6:.2f}M",
                f"{entry.parameters / plain:.2f}",
                *(entry.shown(key) for key in KEYS),
                *([] if short else [f"{entry.mean('too_sure'):+.4f}"]),
                str(len(entry.found)) if name in found and entry is found[name] else "1 each",
            ]
            for name, entry in [*found.items(), *together(study).items()]
            if not is_variant(name)
        ]
        return f"{table(heading, rows)}\n\n{made_by(study, runs, up)}"

    return build


def with_other_sigmas() -> str:
    """The recipe and its variants on the test sets."""
    rows = []
    for study in ("fashion-mnist", "cifar10", "mnist", "budgets"):
        found = entries(study)
        varied = {base_of(name) for name in found if is_variant(name)}
        for name, entry in found.items():
            if base_of(name) in varied:
                rows.append([study, entry.label, *(entry.shown(key) for key in KEYS), str(len(entry.found))])
    return table(["data", "Network", *(METRICS[key].heading for key in KEYS), "seeds"], rows)


def command(study: str) -> str:
    return f"python experiments/recipe/run.py {study}"


def made_by(study: str, runs: dict[str, list[dict[str, Any]]], up: str = "../") -> str:
    results = [run for each in runs.values() for run in each]
    commits = ", ".join(sorted({short_commit(run["commit"]) for run in results}))
    return (
        f"From [`results/recipe/{study}`]({up}results/recipe/{study}), made by `{command(study)}` at commit {commits} "
        f"with torch {results[0]['versions']['torch']} on an {results[0]['processor']}."
    )


def explored(study: str) -> Callable[[], str]:
    """What each change does, on the validation split."""

    def build() -> str:
        running, anew = entries(study), entries(study, " bn")
        heading = ["run", "what it changes", "RS", *(METRICS[key].heading for key in KEYS), "NLL, BatchNorm anew"]
        results = results_of(study)
        data = {name: runs[0]["config"]["data"] for name, runs in results.items()}
        rows = []
        for name, changes in listed(study).items():
            if name in running:
                one = running[name]
                alike = [results[other][0] for other in results if data[other] == data[name]]
                relative = one.parameters / max(run["parameters"]["plain"] for run in alike)
                numbers = [one.shown(key) for key in KEYS]
                rows.append([name, said(changes), f"{relative:.2f}", *numbers, anew[name].shown("nll")])
        return f"{table(heading, rows)}\n\n{made_by(study, results)}"

    return build


def said(changes: dict[str, Any] | None) -> str:
    """Settings in words."""
    flat = flattened(changes)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in flat.items() if value is not None)


def flattened(changes: dict[str, Any] | None) -> dict[str, Any]:
    """Settings, with the method's options and the model's arguments among them."""
    given = dict(changes or {})
    return {**given.pop("model_args", {}), **given.pop("options", {}), **given}


def apart(study: str) -> Callable[[], str]:
    """How well the entropy of the prediction tells other data sets from the test set: area under the ROC curve."""

    def build() -> str:
        rows = []
        others: list[str] = []
        for name, runs in results_of(study).items():
            if is_variant(name):
                continue
            others = list(runs[0].get("ood", {}))
            areas = [statistics.mean(run["ood"][other][way_of(run)]["entropy"] for run in runs) for other in others]
            rows.append([label_of(study, name, runs[0]), *(f"{area:.3f}" for area in areas), str(len(runs))])
        return table(["Network", *others, "seeds"], rows) if rows else f"Not run yet: `{command(study)}`."

    return build


def scaled_sigmas() -> str:
    """Draws of finished networks with smaller sigmas, and how much more confident than accurate they are."""
    found = json.loads((RESULTS / "sigmas.json").read_text(encoding="utf-8"))
    heading = ["network", "sigmas", *(METRICS[key].heading for key in KEYS), "confidence above accuracy"]
    rows = [
        [name, f"x {draws['factor']:g}", *(METRICS[key].show(draws[key]) for key in KEYS), f"{draws['too_sure']:+.4f}"]
        for name, run in found.items()
        for draws in run["draws"]
    ]
    commits = ", ".join(sorted({short_commit(run["commit"]) for run in found.values()}))
    return (
        f"{table(heading, rows)}\n\nFrom [`results/recipe/sigmas.json`](../results/recipe/sigmas.json), made by "
        f"`python experiments/recipe/sigmas.py RUN --factor .7` and so on at commit {commits}."
    )


CURVES = ("plain", "KSN")
"""The networks of which there are several sizes."""


def by_size() -> dict[str, Entry]:
    """The networks of Fashion-MNIST that differ in kind or size, the smallest first."""
    found = {
        name: entry
        for study in ("fashion-mnist", "budgets")
        for name, entry in entries(study).items()
        if differs_in_size(study, name)
    }
    return dict(sorted(found.items(), key=lambda item: item[1].parameters))


def budgets() -> str:
    """Plain networks and KSNs of several sizes, by size."""
    found = by_size()
    if not entries("budgets"):
        return f"Not run yet: `{command('budgets')}`."
    plain = found["plain"].parameters
    rows = [
        [entry.label, f"{entry.parameters / plain:.2f}", *(entry.shown(key) for key in KEYS), str(len(entry.found))]
        for name, entry in found.items()
        if name.split("-")[0] in ("plain", "ksn")
    ]
    heading = ["Network", "RS", *(METRICS[key].heading for key in KEYS), "seeds"]
    return f"{table(heading, rows)}\n\n{made_by('budgets', results_of('budgets'))}"


def draw(path: Path) -> None:
    """Accuracy, NLL and ECE against parameters, of the recipe's own sizes and of other budgets."""
    import matplotlib.pyplot as plt

    found = by_size()
    if not found:
        return
    colours = {"plain": "#1f2933", "MC-Drop": "#d97706", "KSN": "#2a7f62", "BNN": "#7c5cbf", "FKSN": "#3b82c4"}
    figure, axes = plt.subplots(1, len(KEYS), figsize=(11, 3.6), layout="constrained")
    for axis, key in zip(axes, KEYS, strict=True):
        for kind, colour in colours.items():
            points = sorted(
                (entry.parameters / 1e6, entry.mean(key), entry.values(key))
                for entry in found.values()
                if entry.label.startswith(kind)
            )
            if points:
                sizes, means, values = zip(*points, strict=True)
                axis.plot(sizes, means, "o-" if kind in CURVES else "o", color=colour, ms=5, lw=1, label=kind)
                axis.vlines(sizes, [min(v) for v in values], [max(v) for v in values], color=colour, lw=1)
        for name, entry in together("fashion-mnist").items():
            if name not in found:
                continue
            colour = next(c for kind, c in colours.items() if entry.label.startswith(f"{TOGETHER} x {kind}"))
            axis.plot(entry.parameters / 1e6, entry.mean(key), "o", mfc="none", color=colour, ms=7, label=entry.label)
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        ticks = [tick for tick in (0.5, 1, 2, 3, 5, 10, 30) if low <= tick <= high]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel("parameters, millions")
        axis.set_title(METRICS[key].heading, loc="left", fontsize=11)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


SECTIONS: dict[str, Callable[[], str]] = {
    "recipe_in_short": on_test_set("fashion-mnist", up="", short=True),
    "recipe_fashion_mnist": on_test_set("fashion-mnist"),
    "recipe_apart": apart("fashion-mnist"),
    "recipe_budgets": budgets,
    "recipe_cifar10": on_test_set("cifar10"),
    "recipe_cifar10_long": on_test_set("cifar10-long"),
    "recipe_cifar100_long": on_test_set("cifar100-long"),
    "recipe_sigmas": scaled_sigmas,
    "recipe_other_sigmas": with_other_sigmas,
    "recipe_cifar100": on_test_set("cifar100"),
    "recipe_mnist": on_test_set("mnist"),
    "recipe_explored": explored("explore"),
    "recipe_confirmed": explored("confirm"),
    "recipe_cifar_choices": explored("cifar-choices"),
}

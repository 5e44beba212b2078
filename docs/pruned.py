"""docs/pruning.md: its table and its figure, from results/pruning, the pruning.json of each run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ANCHOR = {0.0: 0.0124, 0.75: 0.0124, 0.95: 0.0129, 0.98: 0.0139}
"""Test error of Blundell et al. (2015), table 2: MNIST, two hidden layers of 1200, scale mixture prior."""
RUNS = {"BNN": "bnn", "KSN δ=.25": "ksn"}
ORDERS = {"snr": "signal-to-noise", "magnitude": "magnitude", "random": "random"}
WAYS = {"mean": "mean", "ensemble": "draws"}


def read(name: str) -> dict[str, Any] | None:
    """A run's curve, if it is there."""
    path = ROOT / "results" / "pruning" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def curve(found: dict[str, Any], what: str, by: str) -> list[dict[str, Any]]:
    """The whole network, and what is left of it in this order."""
    return [p for p in found["points"] if p["what"] == "nothing" or (p["what"], p["by"]) == (what, by)]


def error(point: dict[str, Any], way: str) -> float:
    return 1 - point["metrics"][way]["accuracy"]


def table() -> str:
    """Test errors by signal-to-noise beside the published ones, and by the other orders."""
    found = {name: result for name, file in RUNS.items() if (result := read(file))}
    columns = [(name, way) for name in found for way in WAYS if way in found[name]["points"][0]["metrics"]]
    heading = ["Zeros", "Order", "Bayes by Backprop", *(f"{name}, {WAYS[way]}" for name, way in columns)]
    rows = []
    for by, order in ORDERS.items():
        curves = {name: {p["share"]: p for p in curve(result, "weights", by)} for name, result in found.items()}
        for share in sorted(set().union(*curves.values())) if curves else []:
            if share == 0 and by != "snr":
                continue
            published = f"{ANCHOR[share]:.2%}" if by == "snr" and share in ANCHOR else ""
            ours = [f"{error(curves[name][share], way):.2%}" for name, way in columns]
            rows.append([f"{share:.0%}", order if share else "", published, *ours])
    align = ["---:", "---", *("---:" for _ in heading[2:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in [heading, align, *rows])


def sizes() -> str:
    """The shrunk kernel seed network."""
    found = read("ksn")
    if found is None:
        return "Not run yet: `kernelseed prune runs/ksn --split test`."
    rows = [["order", "parameters", "of plain", "error, mean", "error, draws", "NLL, draws"], ["---", *5 * ["---:"]]]
    for by, order in ORDERS.items():
        for point in curve(found, "channels", by):
            if point["by"] or by == "snr":
                errors = [f"{error(point, way):.2%}" for way in WAYS]
                cells = f"{point['parameters']:,}", f"{point['relative']:.3f}"
                rows.append(
                    [order if point["by"] else "whole", *cells, *errors, f"{point['metrics']['ensemble']['nll']:.4f}"]
                )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def tried() -> str:
    """All settings that were started, and what the validation images said of them."""
    rows = [
        ["", "prior", "KL weight", "rho starts at", "lr", "epochs", "whole", "75 %", "95 %", "98 %"],
        ["---"] * 2 + ["---:"] * 8,
    ]
    for run in read("tried")["runs"]:
        settings, options = run["settings"], run["settings"]["options"]
        errors = run.get("validation_error_percent_of_the_mean")
        if errors:
            found = [f"{errors[f'snr {share}']:.2f} %" for share in ("0", "0.75", "0.95", "0.98")]
        else:
            found = [run["state"].partition(":")[0], "", "", ""]
        start = (str(options[key]) for key in ("prior", "kl", "rho_offset", "lr"))
        rows.append([settings["method"].upper(), *start, str(settings["epochs"]), *found])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def draw(path: Path) -> None:
    """Error and NLL against zeros, for both networks, and against size."""
    import matplotlib.pyplot as plt

    found = {name: result for name, file in RUNS.items() if (result := read(file))}
    if not found:
        return
    colours = {"snr": "#2a7f62", "magnitude": "#d97706", "random": "#9aa5b1"}
    panels = [(name, "weights") for name in found] + [(n, "channels") for n in found if curve_has(found[n], "channels")]
    figure, axes = plt.subplots(2, len(panels), figsize=(3.6 * len(panels), 5.6), layout="constrained", squeeze=False)
    for column, (name, what) in enumerate(panels):
        for by, colour in colours.items():
            points = curve(found[name], what, by)
            x = [p["share"] if what == "weights" else p["relative"] for p in points]
            for way, dash in (("ensemble", "-"), ("mean", ":")):
                label = f"{ORDERS[by]}, {WAYS[way]}"
                axes[0, column].plot(
                    x, [100 * error(p, way) for p in points], f"o{dash}", ms=3, color=colour, label=label
                )
                axes[1, column].plot(x, [p["metrics"][way]["nll"] for p in points], f"o{dash}", ms=3, color=colour)
        for axis, title in zip(axes[:, column], ("test error, %", "test NLL"), strict=True):
            axis.set_yscale("log")
            if what == "weights":
                axis.set_xscale("function", functions=(lambda v: -_log(1 - v), lambda v: 1 - 10**-v))
                axis.set_xlim(-0.05, 0.992)
                axis.set_xticks([0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99], ["0", ".5", ".75", ".9", ".95", ".98", ".99"])
            else:
                axis.invert_xaxis()
            axis.set_xlabel("share of weights that are zero" if what == "weights" else "parameters / plain parameters")
            axis.set_ylabel(title)
        axes[0, column].set_title(f"{name}, {'pruned' if what == 'weights' else 'shrunk'}", loc="left", fontsize=11)
        if what == "weights":
            anchor = list(ANCHOR.items())
            axes[0, column].plot(
                [s for s, _ in anchor], [100 * e for _, e in anchor], "k*", ms=7, zorder=0, label="Bayes by Backprop"
            )
    handles = axes[0, 0].get_legend_handles_labels()
    axes[0, -1].legend(*handles, frameon=False, fontsize=8, loc="center right")
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def curve_has(found: dict[str, Any], what: str) -> bool:
    return any(point["what"] == what for point in found["points"])


def _log(value: Any) -> Any:
    import numpy as np

    return np.log10(np.clip(value, 1e-6, None))

"""make tables: regression on the UCI tables with their published splits, plain, MC-dropout, BNN and KSN.

    python benchmarks/tables.py FOLDER --names concrete --out results/tables

FOLDER has NAME.csv, whose column y is the target, and NAME.test-rows.txt: a line a split, with the numbers of its test
rows from 0. They are those of Hernandez-Lobato and Adams (2015), which Gal and Ghahramani (2016) use.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import kernelseed as ks
from kernelseed.core import derive_seed
from kernelseed.training import provenance, summarise

SIGMAS = {"kl": "automatic", "rho_lr": 1.0}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("baseline", {}),
    "dropout": ("dropout", {"rate": 0.05}),
    "bnn": ("bnn", SIGMAS),
    "ksn .25": ("ksn", {"delta": 0.25, "over": "weights", **SIGMAS}),
    "ksn 1": ("ksn", {"delta": 1.0, "over": "weights", **SIGMAS}),
}
SETTINGS: dict[str, Any] = {"widths": [50, 50], "steps": 2000, "batch_size": 64, "lr": 0.01, "samples": 50}


def split(csv: Path, test_rows: set[int], folder: Path) -> ks.data.Dataset:
    """The data of one split."""
    heading, *rows = csv.read_text(encoding="utf-8").splitlines()
    for name, chosen in (("train", False), ("test", True)):
        kept = [row for number, row in enumerate(rows) if (number in test_rows) == chosen]
        (folder / f"{name}.csv").write_text("\n".join([heading, *kept]) + "\n", encoding="utf-8")
    return ks.data.load(f"csv:{folder / 'train.csv'}", target="y", test=str(folder / "test.csv"))


def run(data: ks.data.Dataset, name: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """Train and test one network."""
    torch.manual_seed(derive_seed("initial weights", seed))
    method = ks.methods.make(name, lr=SETTINGS["lr"], **options)
    plain = ks.models.WithNoise(ks.models.mlp(1, len(data.mean), (), widths=SETTINGS["widths"]))
    target = data.table.target
    likelihood = ks.likelihoods.Gaussian("output", mean=target.mean, std=target.std)
    net = method.build(plain)
    optimizer = method.build_optimizer(net, len(data.train))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SETTINGS["steps"])
    batches = ks.data.Batches(data.train, data.mean, data.std, SETTINGS["batch_size"], shuffle=True, seed=seed)
    step = 0
    while step < SETTINGS["steps"]:
        batches.set_epoch(step // len(batches))
        for x, y in batches:
            method.step(net, optimizer, x, y, ks.schedules.Moment(step, len(data.train)), likelihood=likelihood)
            schedule.step()
            step += 1
    test = ks.data.Batches(data.test, data.mean, data.std, 256)
    samples = SETTINGS["samples"] if method.random else 0
    prediction = ks.predict(method.posterior(net, optimizer), test, samples, likelihood=likelihood, seed=seed)
    return summarise(prediction, data.test.targets) | {"parameters": sum(p.numel() for p in net.parameters())}


def mean_and_error(values: list[float]) -> dict[str, float]:
    """The mean over splits, and its standard error."""
    found = torch.tensor(values, dtype=torch.float64)
    return {"mean": found.mean().item(), "error": found.std().item() / math.sqrt(len(values))}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--out", type=Path, default=Path("results/tables"), help="a file a table")
    arguments.add_argument("--names", default="concrete,energy,wine-red,yacht")
    arguments.add_argument("--splits", type=int, default=3)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    for name in given.names.split(","):
        begun = time.process_time()
        lines = (given.folder / f"{name}.test-rows.txt").read_text().splitlines()[: given.splits]
        each: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
        for number, line in enumerate(lines):
            with tempfile.TemporaryDirectory() as folder:
                data = split(given.folder / f"{name}.csv", {int(row) for row in line.split()}, Path(folder))
            for method, (kind, options) in METHODS.items():
                each[method].append(run(data, kind, options, seed=number))
                print(name, number, method, each[method][-1]["rmse"], each[method][-1]["nll"], flush=True)
        found = {
            method: {"metrics": {key: mean_and_error([r[key] for r in runs]) for key in runs[0]}, "splits": runs}
            for method, runs in each.items()
        }
        result = {
            "data": name,
            "settings": {**SETTINGS, "schedule": "cosine", "methods": METHODS},
            "seeds": "the number of the split",
            "splits": given.splits,
            "found": found,
            "processor_seconds": round(time.process_time() - begun),
            **provenance(),
        }
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Where the sigmas of a finished run over channels have gone, and what its draws would be with others.

    python experiments/recipe/sigmas.py runs/recipe/cifar10/ksn-seed-2 --factor 1 --factor .7

Adds to results/recipe/sigmas.json, by the name of the run: for each layer the median sigma of the seed's channels as a
share of the seed's root mean square; what the noise costs, in nats an example, on training images; and accuracy, NLL
and ECE of ten draws whose sigmas are so many times as large, with how much more confident than accurate they are. It
looks at the test set to explain a result, not to choose.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer

from kernelseed import metrics
from kernelseed.core import BayesianModule, inverse_softplus
from kernelseed.data import Split
from kernelseed.system.files import write_json
from kernelseed.training import RunFolder, predict_split, provenance

IMAGES = 5000


def shares(net: BayesianModule) -> dict[str, float]:
    """The median sigma of each seed's channels, relative to the seed."""
    return {
        name: round((F.softplus(weight.seed_rho).median() / weight.seed.square().mean().sqrt()).item(), 3)
        for name, weight in net.weights.items()
    }


@torch.no_grad()
def scale(net: BayesianModule, factor: float) -> None:
    """Multiply all sigmas."""
    for weight in net.weights.values():
        for rho in (weight.seed_rho, weight.germinator_rho):
            rho.copy_(inverse_softplus(factor * F.softplus(rho)))


def cost(run: RunFolder, data_dir: Path | None) -> float:
    """The NLL of single draws minus that of the mean, over the first training images: five draws."""
    config = run.training_config()
    data, net = config.load_data(data_dir), run.network()
    images = Split(data.train.images[:IMAGES], data.train.labels[:IMAGES])

    def nll(way: str, seed: int = 0) -> float:
        found = predict_split(net, images, data, replace(config, samples=1, seed=seed), way)
        return metrics.nll(found.probs.float(), images.labels)

    return statistics.mean(nll("ensemble", seed) for seed in range(5)) - nll("mean")


def tested(run: RunFolder, factor: float, data_dir: Path | None) -> dict[str, Any]:
    """Ten draws on the test set."""
    config = run.training_config()
    data, net = config.load_data(data_dir), run.network()
    scale(net, factor)
    found = predict_split(net, data.test, data, config, "ensemble")
    summary = metrics.summary(found.probs.float(), data.test.labels)
    too_sure = found.confidence.double().mean().item() - summary["accuracy"]
    return {"factor": factor, **{key: summary[key] for key in ("accuracy", "nll", "ece")}, "too_sure": too_sure}


def main(
    folder: Annotated[Path, typer.Argument(help="A finished run of KSN over channels.")],
    factor: Annotated[list[float] | None, typer.Option(help="What sigmas are multiplied with; default: 1.")] = None,
    results: Annotated[Path, typer.Option(help="The file to add to.")] = Path("results/recipe/sigmas.json"),
    data_dir: Annotated[Path | None, typer.Option(help="Where the data sets are.")] = None,
) -> None:
    """Look at one run."""
    run = RunFolder(folder)
    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    found[f"{folder.parent.name}/{folder.name}"] = {
        "sigma of seeds": shares(run.network()),
        "cost of noise": cost(run, data_dir),
        "draws": [tested(run, each, data_dir) for each in factor or [1.0]],
        **provenance(),
    }
    write_json(results, found)


if __name__ == "__main__":
    typer.run(main)

"""What a stored network is made of, weight by weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kernelseed.core import BayesianModule, Pruned, WeightDistribution
from kernelseed.models import Model
from kernelseed.training.run_folder import RunFolder


def describe_run(run: str | Path, *, model: Model | None = None, trust_model: bool = False) -> dict[str, Any]:
    """The network of a run or of `ks.save`: its kind, its size, and each of its Bayesian weights.

    A model of your own is given again, or its name trusted: see `ks.load`.
    """
    folder = RunFolder(run)
    net = folder.network(model, trust_model)
    return {
        "run": str(run),
        "kind": folder.config()["network"]["kind"],
        "stored": sum(p.numel() for p in net.parameters()),
        "parameters": folder.result()["parameters"] if folder.finished else {},
        "layers": [_layer(*named) for named in net.weights.items()] if isinstance(net, BayesianModule) else [],
    }


@torch.no_grad()
def _layer(name: str, weight: WeightDistribution) -> dict[str, Any]:
    std = weight.moments().std
    return {
        "weight": name,
        "shape": list(weight.shape),
        "distribution": f"{type(weight.of).__name__}, pruned" if isinstance(weight, Pruned) else type(weight).__name__,
        "rank": weight.rank,
        "parameters": sum(p.numel() for p in weight.parameters()),
        "weights": weight.num_weights,
        "zeros": weight.num_weights - weight.num_kept if isinstance(weight, Pruned) else 0,
        "sigma": None if std is None else std.mean().item(),
    }

"""Pruning: weights that are zero for good."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.arguments import check_number, rounded_up
from kernelseed.core.conversion import deep_copy
from kernelseed.core.distributions import at_least_float32
from kernelseed.core.network import BayesianModule
from kernelseed.core.seeds import generator_for
from kernelseed.core.weights import Pruned, WeightDistribution
from kernelseed.errors import ArgumentError, ArgumentTypeError

ORDERS = ("snr", "magnitude", "random")
"""By what weights and channels are put in order; the least go first."""


@torch.no_grad()
def prune(net: BayesianModule, sparsity: float = 0.75, by: str = "snr", *, seed: int = 0) -> BayesianModule:
    """A copy of a network in which a share of the weights is zero: in the mean, in every draw, and when collapsed.

    The order is one for all layers, so that each loses as many as it can spare. Weights without a distribution, such
    as biases, are not counted and stay. The copy can be predicted with, trained further, saved and loaded.

    sparsity  the share of weights that are zero afterwards, rounded to a whole number of them
    by        "snr", |mean| / std; "magnitude", |mean|; or "random", for comparison
    seed      of the random order

    >>> import kernelseed as ks
    >>> net = ks.prune(ks.bayesianize(torch.nn.Linear(20, 30)), sparsity=0.75)
    >>> int((ks.collapse(net).weight == 0).sum())
    450
    """
    require_bayesian(net, "pruned")
    require_order(by)
    check_number("sparsity", sparsity, "the share of weights to set to zero")
    if not 0 <= sparsity < 1:
        raise ArgumentError(f"sparsity is {sparsity}; it is the share of weights to set to zero: 0 <= sparsity < 1.")
    generator = generator_for("prune", seed)
    scores = {name: _weight_scores(name, weight, by, generator) for name, weight in net.weights.items()}
    total, gone, count = _counts(net, sparsity)
    if count < gone:
        raise ArgumentError(
            f"sparsity is {sparsity}, and {gone / total:.4g} of the weights are zero already: give at least "
            f"{rounded_up(gone / total):g}."
        )
    kept = above_the_least(torch.cat([score.flatten() for score in scores.values()]), count)
    parts = kept.split([score.numel() for score in scores.values()])
    return rebuilt(net, {
        name: Pruned(copy.deepcopy(whole(weight)), part.reshape(weight.shape).clone())
        for (name, weight), part in zip(net.weights.items(), parts, strict=True)
    })  # fmt: skip


def is_prunable(net: BayesianModule, sparsity: float) -> bool:
    """Whether no more of the weights are zero already."""
    _, gone, count = _counts(net, sparsity)
    return gone <= count


def _counts(net: BayesianModule, sparsity: float) -> tuple[int, int, int]:
    """How many weights there are, how many of them are pruned, and how many would be."""
    weights = net.weights.values()
    total = sum(weight.num_weights for weight in weights)
    gone = sum(weight.num_weights - weight.num_kept for weight in weights if isinstance(weight, Pruned))
    return total, gone, math.floor(sparsity * total + 0.5)


def needed_parameters(net: nn.Module) -> int:
    """The parameters that a network computes with: without those that belong to pruned weights alone.

    A pruned seed needs all of its numbers, a pruned mean-field weight none. A stored network keeps all of them.
    """
    count = sum(p.numel() for p in net.parameters())
    for weight in net.weights.values() if isinstance(net, BayesianModule) else ():
        if isinstance(weight, Pruned) and weight.rank is None:
            own = sum(p.shape == weight.shape for p in weight.parameters())
            count -= own * (weight.num_weights - weight.num_kept)
    return count


def above_the_least(scores: Tensor, count: int) -> Tensor:
    """Where all but the `count` least scores are; of equal ones the first go first, so that the count is exact.

    >>> above_the_least(torch.tensor([3.0, 1.0, 1.0, 2.0]), 1)
    tensor([ True, False,  True,  True])
    """
    if not count:
        return torch.ones_like(scores, dtype=torch.bool)
    threshold = scores.kthvalue(count).values
    kept = scores > threshold
    at_threshold = (scores == threshold).nonzero()[:, 0]
    spared = len(scores) - count - int(kept.sum())
    kept[at_threshold[len(at_threshold) - spared :]] = True
    return kept


def require_bayesian(net: Any, what: str) -> None:
    """An error unless it has distributions."""
    if not isinstance(net, BayesianModule):
        raise ArgumentTypeError(
            f"net is a {type(net).__name__}; only a BayesianModule can be {what}: make one with ks.bayesianize(model) "
            "or ks.germinate(model), and train it."
        )


def require_order(by: str) -> None:
    """An error unless it is one of `ORDERS`."""
    if by not in ORDERS:
        raise ArgumentError(f"by is {by!r}; allowed are {', '.join(map(repr, ORDERS))}.")


def rebuilt(net: BayesianModule, weights: Mapping[str, WeightDistribution]) -> BayesianModule:
    """A copy of the network with other distributions of the same shapes."""
    for name, weight in weights.items():
        trained = _trained(net.weights[name])
        for part, parameter in whole(weight).named_parameters():
            parameter.requires_grad_(trained.get(part, any(trained.values())))
    other = BayesianModule(deep_copy(net.skeleton), weights, net.weights.aliases)
    other.training = net.training
    return other


def _trained(weight: WeightDistribution) -> dict[str, bool]:
    """Which of its parameters are trained."""
    return {name: parameter.requires_grad for name, parameter in whole(weight).named_parameters()}


def whole(weight: WeightDistribution) -> WeightDistribution:
    """The distribution that was pruned, or the one that was not."""
    return weight.of if isinstance(weight, Pruned) else weight


def _weight_scores(name: str, weight: WeightDistribution, by: str, generator: torch.Generator) -> Tensor:
    """What each weight is worth, 0 or more; -1 where it is zero already."""
    moments = whole(weight).moments()
    score = at_least_float32(moments.mean).abs()
    if by == "random":
        score = torch.rand(weight.shape, generator=generator).to(score)
    elif by == "snr":
        if moments.std is None:
            raise ArgumentError(
                f"by is 'snr', but {name} is a {type(whole(weight)).__name__}, which has no standard deviation: take "
                "by='magnitude'."
            )
        score = score / moments.std
    if score.isnan().any():
        raise ArgumentError(f"{name} has weights that are not numbers; prune a network whose training went well.")
    return torch.where(weight.kept, score, -1.0) if isinstance(weight, Pruned) else score

"""Shrinking: seed channels that are dropped, so that less is stored and less is computed."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kernelseed.core.arguments import check_number, rounded_up
from kernelseed.core.distributions import at_least_float32
from kernelseed.core.network import BayesianModule
from kernelseed.core.pruning import rebuilt, require_bayesian, require_order, whole
from kernelseed.core.seeds import generator_for
from kernelseed.core.weights import Pruned, WeightDistribution
from kernelseed.errors import ArgumentError
from kernelseed.fast import unfold


@torch.no_grad()
def shrink(net: BayesianModule, budget: float = 0.2, by: str = "snr", *, seed: int = 0) -> BayesianModule:
    """A smaller copy of a kernel seed network, without its least channels: at most this share of plain parameters.

    A channel of a seed goes with its columns of the germinators. Every layer keeps one channel at least. The copy is as
    near to the budget as whole channels allow: none of those dropped would still fit. It can be predicted with, trained
    further, saved and factorised, which is then faster.

    budget  the share of the plain network's parameters that the copy may have
    by      "snr": a channel's part of the mean, divided by the standard deviation of the same weight, as the root mean
            square over its layer. A fixed weight has none; there the root mean square of the layer's means divides.
            "magnitude": the root mean square of its part of the mean. "random": for comparison
    seed    of the random order

    >>> import kernelseed as ks
    >>> net = ks.germinate(torch.nn.Linear(200, 100, bias=False), delta=0.5, over="weights")
    >>> ks.shrink(net, budget=0.2).weights["weight"].rank
    9
    """
    require_bayesian(net, "shrunk")
    require_order(by)
    check_number("budget", budget, "the share of the plain network's parameters that is left")
    seeds = _seeds(net)
    _require_seeds(net, seeds)
    plain, stored, least = plain_parameters(net), _count(net), _least(net, seeds)
    if not 0 < budget < math.inf:
        raise ArgumentError(
            f"budget is {budget}; it is a share of the plain network's parameters, such as 0.2: above 0."
        )
    allowed = math.floor(budget * plain + 1e-9)
    if not least <= allowed <= stored:
        raise ArgumentError(
            f"budget is {budget}, {allowed:,} of the plain network's {plain:,} parameters; the network has {stored:,}, "
            f"and {least:,} with one channel a seed: give at least {rounded_up(least / plain):g}, and no more "
            "than it has."
        )
    generator = generator_for("shrink", seed)
    worth = {name: seed.scores(by, generator) for name, seed in seeds.items()}
    kept = _within(seeds, worth, allowed - least)
    return rebuilt(net, {
        name: _with_zeros_of(weight, seeds[name].with_channels(kept[name])) if name in seeds else copy.deepcopy(weight)
        for name, weight in net.weights.items()
    })  # fmt: skip


def _with_zeros_of(weight: WeightDistribution, smaller: WeightDistribution) -> WeightDistribution:
    return Pruned(smaller, weight.kept.clone()) if isinstance(weight, Pruned) else smaller


def least_budget(net: BayesianModule) -> float:
    """The smallest budget that `shrink` takes: one channel a seed."""
    return _least(net, _seeds(net)) / plain_parameters(net)


def _seeds(net: BayesianModule) -> dict[str, Seed]:
    return {name: Seed(name, whole(weight)) for name, weight in net.weights.items() if weight.rank is not None}


def _least(net: BayesianModule, seeds: dict[str, Seed]) -> int:
    """The parameters that are left with one channel a seed."""
    return _count(net) - sum(seed.cost * (seed.rank - 1) for seed in seeds.values())


def plain_parameters(net: BayesianModule) -> int:
    """How many parameters the plain network has: those that stayed, and one for each weight."""
    rest = sum(p.numel() for p in net.skeleton.parameters())
    return rest + sum(weight.num_weights for weight in net.weights.values())


@dataclass(frozen=True, eq=False)
class Seed:
    """A weight distribution with a seed, as channels that can be dropped one by one."""

    name: str
    weight: WeightDistribution

    @property
    def rank(self) -> int:
        """How many channels there are."""
        assert self.weight.rank is not None
        return self.weight.rank

    @property
    def cost(self) -> int:
        """The parameters of one channel."""
        with torch.device("meta"):
            return _count(self._blank(2)) - _count(self._blank(1))

    def scores(self, by: str, generator: torch.Generator) -> Tensor:
        """What each channel is worth; see `shrink`."""
        if by == "random":
            return torch.rand(self.rank, generator=generator)
        factors, moments = self.weight.factors(), self.weight.moments()
        assert factors is not None
        germinator, seed = (at_least_float32(factor).square() for factor in factors)
        if by == "magnitude":
            precision = torch.ones((), dtype=seed.dtype, device=seed.device).expand(len(germinator), seed[0].numel())
        elif moments.std is None:
            mean_square = at_least_float32(moments.mean).square().mean()
            precision = (1 / mean_square.clamp_min(1e-30)).expand(len(germinator), seed[0].numel())
        else:
            precision = 1 / unfold(moments.std).square()
        # The mean over the weights (i, j) of (germinator[i, r] seed[r, j] / std[i, j])^2.
        squares = ((germinator.T @ precision) * seed.flatten(1)).sum(1) / self.weight.num_weights
        if squares.isnan().any():
            raise ArgumentError(
                f"{self.name} has weights that are not numbers; shrink a network whose training went well."
            )
        return squares.sqrt().cpu()

    def with_channels(self, kept: Tensor) -> WeightDistribution:
        """The distribution with these channels alone."""
        smaller = self._blank(len(kept))
        whole = dict(self.weight.named_parameters())
        for name, parameter in smaller.named_parameters():
            values = whole[name].detach()
            for axis, (before, after) in enumerate(zip(values.shape, parameter.shape, strict=True)):
                if before != after:  # which is the axis of the channels
                    values = values.index_select(axis, kept.to(values.device))
            parameter.data = values.clone()
        return smaller

    def _blank(self, rank: int) -> WeightDistribution:
        return type(self.weight).from_spec({**self.weight.spec(), "rank": rank})


def _within(seeds: dict[str, Seed], worth: dict[str, Tensor], room: int) -> dict[str, Tensor]:
    """The channels of each seed to keep: its best one, then the best of all seeds that fit into so many parameters.

    From where a channel does not fit any more, a smaller one of less worth may still do.
    """
    kept = {name: [int(values.argmax())] for name, values in worth.items()}
    costs = {name: seed.cost for name, seed in seeds.items()}
    channels = [(value, name, r) for name, values in worth.items() for r, value in enumerate(values.tolist())]
    for _, name, channel in sorted(channels, key=lambda entry: -entry[0]):
        if channel != kept[name][0] and costs[name] <= room:
            kept[name].append(channel)
            room -= costs[name]
    return {name: torch.tensor(sorted(channels)) for name, channels in kept.items()}


def _require_seeds(net: BayesianModule, seeds: dict[str, Seed]) -> None:
    if not seeds:
        kinds = ", ".join(sorted({type(weight).__name__ for weight in net.weights.values()}))
        raise ArgumentError(
            f"net has no seed whose channels could be dropped, only {kinds}: take ks.prune, or a network of "
            "ks.germinate."
        )


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())

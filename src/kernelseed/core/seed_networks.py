"""Kernel seed networks from any module, with seeds of any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kernelseed.core.arguments import check_count, check_number
from kernelseed.core.conversion import Where, assemble, choose_parameters, sigma_start
from kernelseed.core.network import BayesianModule
from kernelseed.core.ranks import ALLOCATIONS, Layer, Layers, Ranks, by_pattern, seed_rank, within_budget
from kernelseed.core.rho_gaussian import RHO_OFFSET
from kernelseed.core.weights import INITS, FixedKernelSeed, GaussianFactors, KernelSeed, WeightDistribution
from kernelseed.errors import ArgumentError

BUDGET, DELTA, MIN_RANK = 0.31, 0.25, 16
FACTOR_SIGMAS = {"factors": 0.05, "channels": 0.07}
"""Where sigma starts, as a share of a factor's root mean square."""
OVER, DEFAULT_OVER = ("weights", *FACTOR_SIGMAS), "channels"
"""What may be random."""


def germinate(
    model: nn.Module,
    delta: float | None = None,
    *,
    min_rank: int | None = None,
    budget: float | None = None,
    allocation: str = "early",
    ranks: Mapping[str, int] | None = None,
    rho_offset: float = RHO_OFFSET,
    sigma: float | None = None,
    init: str = "model",
    fixed: bool = False,
    over: str = DEFAULT_OVER,
    where: Where | None = None,
) -> BayesianModule:
    """A kernel seed network (KSN) from any module; `model` itself is not changed.

    By default it has .31 of the parameters that it replaces, and every seed at least 16 channels. To choose otherwise:

    delta       the share of channels that a seed keeps: C_pip = min(C_f, max(min_rank, ceil(delta * C_f)))
    min_rank    a lower limit of C_pip, default 16. With the paper's 1 a ten-class classifier has rank 3 at delta .25
    budget      instead of delta: the share of the plain network's parameters that the whole network may have
    allocation  how a budget is shared: "early" (the same rank for all, so that small layers keep full rank), "uniform"
                (the same share of channels) or "spectrum" (the same share of squared singular values)
    ranks       ranks by name, `{"layer1.*": 64}`; other layers follow delta, default .25
    rho_offset  over weights: the initial rho of all of them; sigma = softplus(rho), so -5 is a sigma of .0067
    sigma       the initial sigma as a share of the root mean square of each weight or factor, such as .05
    init        "model": the best approximation of the given weights, exact at full rank; "glorot": the paper's
    fixed       FKSN: only the mean, no sampling, KL 0
    over        what is random: "weights" (the paper's), or seed and germinator, with a sigma for each of their channels
                ("channels") or numbers ("factors"), which starts at .07 or .05 of the factor's root mean square
    where       where(name, parameter) -> bool chooses among the parameters of two or more axes. By default all but
                those of normalisation layers, and the magnitudes of `weight_norm`

    >>> net = germinate(nn.Conv2d(64, 128, 3), delta=0.25)
    >>> net.weights["weight"].moments().mean.shape
    torch.Size([128, 64, 3, 3])
    """
    kind = _kind(over, fixed, rho_offset, sigma)
    if init not in INITS:
        raise ArgumentError(f"init is {init!r}; allowed are {', '.join(map(repr, INITS))}.")
    chosen = choose_parameters(model, where)
    layers = {name: Layer(p.detach(), kind.channel_cost(p.shape)) for name, (p, _) in chosen.items()}
    if budget is not None:
        found = _by_budget(model, layers, kind.layer_cost, budget, allocation, delta, min_rank, ranks)
    elif delta is min_rank is ranks is None:
        found = _by_default(model if where is None else None, layers, kind.layer_cost, allocation)
    else:
        found = _by_share(layers, delta, min_rank, ranks)
    weights = {name: kind.make(layer.weight, *INITS[init](layer.weight, found[name])) for name, layer in layers.items()}
    return assemble(model, chosen, weights)


@dataclass(frozen=True)
class Kind:
    """A distribution with a seed: how to make it from its factors, and its parameters per channel and per layer."""

    make: Callable[[Tensor, Tensor, Tensor], WeightDistribution]
    germinators: int
    numbers: int
    layer_cost: int = 0
    rhos_by_channel: int = 0

    def channel_cost(self, shape: torch.Size) -> int:
        """The parameters of one channel of the seed and of its columns of the germinators."""
        narrow, wide = min(shape[:2]), max(shape[:2]) * math.prod(shape[2:])
        return self.numbers * (wide + self.germinators * narrow) + self.rhos_by_channel


def _kind(over: str, fixed: bool, rho_offset: float, sigma: float | None) -> Kind:
    start = sigma_start(rho_offset, sigma)
    share = FACTOR_SIGMAS.get(over, 1.0) if sigma is None else sigma

    def factors(by_channel: bool) -> Callable[[Tensor, Tensor, Tensor], WeightDistribution]:
        return lambda w, seed, g: GaussianFactors(seed, g, w.shape, by_channel=by_channel, sigma=share)

    if over not in OVER:
        raise ArgumentError(f"over is {over!r}; allowed are {', '.join(map(repr, OVER))}.")
    kinds = {
        "weights": Kind(lambda w, seed, g: KernelSeed(seed, g, start(w), w.shape), 2, 1, layer_cost=1),
        "factors": Kind(factors(by_channel=False), 1, 2),
        "channels": Kind(factors(by_channel=True), 1, 1, rhos_by_channel=2),
    }
    if over != "weights" and rho_offset != RHO_OFFSET:
        raise ArgumentError(f"rho_offset is {rho_offset} with over={over!r}, where sigma is a share: use sigma=0.05.")
    if not fixed:
        return kinds[over]
    if over not in ("weights", DEFAULT_OVER):
        raise ArgumentError(f"over is {over!r} with fixed=True, where nothing is random: leave one of them out.")
    return Kind(lambda w, seed, g: FixedKernelSeed(seed, g, w.shape), 1, 1)


def _by_default(model: nn.Module | None, layers: Layers, layer_cost: int, allocation: str) -> Ranks:
    """Within the budget of the model, or of the layers alone; above it if the floor under ranks needs more."""
    check_allocation(allocation)
    converted = sum(layer.weight.numel() for layer in layers.values())
    whole = converted if model is None else sum(p.numel() for p in model.parameters())
    left = math.floor(BUDGET * whole) - (whole - converted) - layer_cost * len(layers)
    floors = {name: min(layer.full_rank, MIN_RANK) for name, layer in layers.items()}
    if left < sum(layer.channel_cost for layer in layers.values()):
        return floors
    found = within_budget(layers, left, allocation)
    return {name: max(found[name], floor) for name, floor in floors.items()}


def check_allocation(allocation: str) -> None:
    """An error unless it is one of the rules."""
    if allocation not in ALLOCATIONS:
        raise ArgumentError(f"allocation is {allocation!r}; allowed are {', '.join(map(repr, ALLOCATIONS))}.")


def _by_share(layers: Layers, delta: float | None, min_rank: int | None, ranks: Mapping[str, int] | None) -> Ranks:
    share = DELTA if delta is None else delta
    floor = MIN_RANK if min_rank is None else min_rank
    check_number("delta", share, "it is the share of channels that a seed keeps, such as 0.25")
    if not 0 < share <= 1:
        raise ArgumentError(f"delta is {delta}; it is the share of channels that a seed keeps: 0 < delta <= 1.")
    check_count("min_rank", floor, 1, "a seed needs at least one channel")
    return by_pattern(layers, ranks or {}, lambda layer: seed_rank(layer.weight.shape, share, floor))


def _by_budget(
    model: nn.Module, layers: Layers, layer_cost: int, budget: float, allocation: str, *others: object
) -> Ranks:
    given = [name for name, value in zip(("delta", "min_rank", "ranks"), others, strict=True) if value is not None]
    if given:
        raise ArgumentError(f"budget is {budget}, which decides all ranks: leave out {' and '.join(given)}.")
    check_number("budget", budget, "it is a share of the plain parameters, such as 0.31")
    if not (budget > 0 and math.isfinite(budget)):
        raise ArgumentError(f"budget is {budget}; it is a share of the plain parameters, such as 0.31: above 0.")
    check_allocation(allocation)
    plain = sum(p.numel() for p in model.parameters())
    converted = sum(layer.weight.numel() for layer in layers.values())
    rest = plain - converted + layer_cost * len(layers)
    least = rest + sum(layer.channel_cost for layer in layers.values())
    allowed = math.floor(budget * plain + 1e-9)
    if allowed < least:
        raise ArgumentError(
            f"budget is {budget}, {allowed:,} of the plain network's {plain:,} parameters; rank 1 in every layer takes "
            f"{least:,}: give at least {math.ceil(1e4 * least / plain) / 1e4:g}."
        )
    return within_budget(layers, allowed - rest, allocation)

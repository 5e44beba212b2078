"""The number of channels of each seed: from one share for all layers, from a parameter budget, or given by name."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.fast import unfold


@dataclass(frozen=True)
class Layer:
    """A weight to germinate: its largest rank, and the number of parameters per channel of its seed."""

    weight: Tensor
    channel_cost: int

    @property
    def full_rank(self) -> int:
        """C_f, the full rank."""
        return min(self.weight.shape[:2])


Layers = Mapping[str, Layer]
Ranks = dict[str, int]


def seed_rank(shape: torch.Size, delta: float, min_rank: int) -> int:
    """C_pip = min(C_f, max(min_rank, ceil(delta * C_f)))."""
    narrow = min(shape[:2])
    # Rounding may move delta * C_f off an integer: .07 * 100 is 7.000000000000001, which must not give 8 channels.
    return min(narrow, max(min_rank, math.ceil(delta * narrow - 1e-9)))


# --- allocation rules: ranks that grow with a level in [0, 1], from 1 in every layer to full rank ------------------


def uniform(layers: Layers) -> Callable[[float], Ranks]:
    """The same share of each layer's channels."""
    return lambda level: {name: max(1, round(level * layer.full_rank)) for name, layer in layers.items()}


def early(layers: Layers) -> Callable[[float], Ranks]:
    """The same number of channels for all layers, so that small layers, which come early, keep full rank."""
    most = max(layer.full_rank for layer in layers.values())
    return lambda level: {name: min(layer.full_rank, max(1, round(level * most))) for name, layer in layers.items()}


def spectrum(layers: Layers) -> Callable[[float], Ranks]:
    """The same share of each weight's squared singular values, for weights that have been trained."""
    shares = {}
    for name, layer in layers.items():
        matrix = unfold(layer.weight.detach()).double()
        squares = torch.linalg.eigvalsh(matrix @ matrix.T).clamp_min(0).flip(0)
        shares[name] = squares.cumsum(0) / squares.sum().clamp_min(torch.finfo(torch.float64).tiny)

    def ranks(level: float) -> Ranks:
        return {
            name: min(layer.full_rank, max(1, int((shares[name] < level).sum()) + (level > 0)))
            for name, layer in layers.items()
        }

    return ranks


ALLOCATIONS: dict[str, Callable[[Layers], Callable[[float], Ranks]]] = {
    "early": early,
    "spectrum": spectrum,
    "uniform": uniform,
}


def within_budget(layers: Layers, parameters: int, allocation: str) -> Ranks:
    """The ranks of a rule within a parameter budget, so close to it that no layer could have one more channel."""
    at_level = ALLOCATIONS[allocation](layers)

    def cost(ranks: Ranks) -> int:
        return sum(layers[name].channel_cost * rank for name, rank in ranks.items())

    low, high = 0.0, 1.0
    if cost(at_level(high)) <= parameters:
        low = high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(at_level(middle)) <= parameters else (low, middle)
    ranks = at_level(low)
    left = parameters - cost(ranks)
    # The remaining parameters go to the layer with the smallest share of its channels, one channel at a time.
    while open_layers := [n for n, x in layers.items() if ranks[n] < x.full_rank and x.channel_cost <= left]:
        name = min(open_layers, key=lambda n: ranks[n] / layers[n].full_rank)
        ranks[name] += 1
        left -= layers[name].channel_cost
    return ranks


def by_pattern(layers: Layers, given: Mapping[str, int], otherwise: Callable[[Layer], int]) -> Ranks:
    """Ranks by name pattern, `{"layer1.*": 64}`; the first match counts."""
    if not isinstance(given, Mapping) or not all(isinstance(pattern, str) for pattern in given):
        raise ArgumentTypeError(f"ranks is {given!r}; it must map names of weights to ranks, as {{'layer1.*': 64}}.")
    for pattern, rank in given.items():
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ArgumentError(f"ranks has {rank!r} for {pattern!r}; a rank is a whole number of at least 1.")
        if not fnmatch.filter(layers, pattern):
            raise ArgumentError(f"ranks has the pattern {pattern!r}, which matches none of {', '.join(layers)}.")

    def rank_of(name: str, layer: Layer) -> int:
        match = next((rank for pattern, rank in given.items() if fnmatch.fnmatchcase(name, pattern)), None)
        return otherwise(layer) if match is None else min(match, layer.full_rank)

    return {name: rank_of(name, layer) for name, layer in layers.items()}

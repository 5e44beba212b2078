"""The size and initialisation of seeds and germinators."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import at_least_float32
from kernelseed.fast import unfold


def _seed_shape(shape: torch.Size, rank: int) -> tuple[int, ...]:
    return (rank, max(shape[:2]), *shape[2:])


def blank_factors(shape: torch.Size, rank: int) -> tuple[Tensor, Tensor]:
    """A seed and a germinator of the right shapes, whose values are not yet set."""
    return torch.empty(_seed_shape(shape, rank)), torch.empty(min(shape[:2]), rank)


@torch.no_grad()
def spectral_factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A seed and a germinator whose product is the best approximation of the weight with this rank.

    It uses the eigenvectors U of the small Gram matrix, in float64. Projecting the weight on the leading eigenvectors
    is the truncated singular value decomposition; at full rank U U^T = 1 restores the weight up to rounding. The
    singular values are split evenly between the two factors.
    """
    matrix = unfold(weight).double()
    eigenvalues, vectors = torch.linalg.eigh(matrix @ matrix.T)
    vectors = vectors[:, -rank:].flip(1)
    strength = eigenvalues[-rank:].flip(0).clamp_min(0).sqrt()  # singular values, largest first
    # In a direction with singular value 0, both factors would start at zero and have zero gradients. There the seed
    # gets random values and the column of the germinator stays zero.
    used = strength > 1e-7 * strength[:1].clamp_min(torch.finfo(torch.float32).tiny)
    length = torch.where(used, strength, torch.ones_like(strength)).sqrt()
    seed = (vectors.T @ matrix) / length[:, None]
    filler = torch.randn(seed.shape, dtype=seed.dtype, device=seed.device) / math.sqrt(max(seed.shape[1], 1))
    seed = torch.where(used[:, None], seed, filler)
    germinator = torch.where(used, length, torch.zeros_like(length)) * vectors
    # Contiguous, as after loading: products of the same numbers are then equal to the last bit.
    return seed.reshape(_seed_shape(weight.shape, rank)).to(weight.dtype), germinator.to(weight.dtype).contiguous()


@torch.no_grad()
def glorot_factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The paper's initialisation: a Glorot uniform seed, and a germinator that keeps the weight scale of the layer.

    The fans of the seed are those of a convolution kernel. The germinator is uniform, too. Its variance is such that
    the germinated mean has the mean square of the current weight, the layer's usual initialisation.
    """
    shape = _seed_shape(weight.shape, rank)
    seed = nn.init.xavier_uniform_(weight.new_empty(shape))
    taps = math.prod(shape[2:])
    seed_variance = 2 / ((shape[0] + shape[1]) * taps)
    target = at_least_float32(weight).square().mean()
    variance = (target / (rank * seed_variance)).to(weight.dtype)
    germinator = torch.empty(min(weight.shape[:2]), rank, dtype=weight.dtype, device=weight.device).uniform_(-1, 1)
    return seed, germinator * (3 * variance).sqrt()


@torch.no_grad()
def identity_factors(weight: Tensor) -> tuple[Tensor, Tensor]:
    """At full rank: the weight itself as the seed, and the identity as its germinator."""
    seed = unfold(weight).clone(memory_format=torch.contiguous_format)
    identity = torch.eye(len(seed), dtype=weight.dtype, device=weight.device)
    return seed.reshape(_seed_shape(weight.shape, len(seed))), identity


Factors = Callable[[Tensor, int], tuple[Tensor, Tensor]]
INITS: dict[str, Factors] = {"model": spectral_factors, "glorot": glorot_factors}

"""Seeds and germinators: how large they are, and where they start."""

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
    """A seed and a germinator of the right shapes, their values not yet set."""
    return torch.empty(_seed_shape(shape, rank)), torch.empty(min(shape[:2]), rank)


@torch.no_grad()
def spectral_factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Seed and germinator whose product is the best rank-`rank` approximation of the weight, balanced.

    By the eigenvectors U of the small Gram matrix, in float64: projecting the weight on the leading ones is the
    truncated singular value decomposition, and at full rank U U^T = 1 gives the weight back to rounding.
    """
    matrix = unfold(weight).double()
    eigenvalues, vectors = torch.linalg.eigh(matrix @ matrix.T)
    vectors = vectors[:, -rank:].flip(1)
    strength = eigenvalues[-rank:].flip(0).clamp_min(0).sqrt()  # singular values, largest first
    # A direction that the weight does not use would start with both factors at zero, where no gradient leads
    # out. Its seed gets the length of an average row instead, and its germinator column the zero.
    used = strength > 1e-7 * strength[:1].clamp_min(torch.finfo(torch.float32).tiny)
    length = torch.where(used, strength, torch.ones_like(strength)).sqrt()
    seed = (vectors.T @ matrix) / length[:, None]
    filler = torch.randn(seed.shape, dtype=seed.dtype, device=seed.device) / math.sqrt(max(seed.shape[1], 1))
    seed = torch.where(used[:, None], seed, filler)
    germinator = torch.where(used, length, torch.zeros_like(length)) * vectors
    # Laid out as a stored one is when it comes back: products of the same numbers are then the same to the last bit.
    return seed.reshape(_seed_shape(weight.shape, rank)).to(weight.dtype), germinator.to(weight.dtype).contiguous()


@torch.no_grad()
def glorot_factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The paper's start: a Glorot uniform seed, and a germinator that keeps the layer's own weight scale.

    Glorot's fans are the seed's as a convolution kernel. The germinator is uniform too, its variance such that
    the germinated mean has the mean square of the weight's current value: the layer's own initialisation.
    """
    shape = _seed_shape(weight.shape, rank)
    seed = nn.init.xavier_uniform_(weight.new_empty(shape))
    taps = math.prod(shape[2:])
    seed_variance = 2 / ((shape[0] + shape[1]) * taps)
    target = at_least_float32(weight).square().mean()
    variance = (target / (rank * seed_variance)).to(weight.dtype)
    germinator = torch.empty(min(weight.shape[:2]), rank, dtype=weight.dtype, device=weight.device).uniform_(-1, 1)
    return seed, germinator * (3 * variance).sqrt()


Factors = Callable[[Tensor, int], tuple[Tensor, Tensor]]
INITS: dict[str, Factors] = {"model": spectral_factors, "glorot": glorot_factors}

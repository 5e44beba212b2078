"""Weight distributions: modules that own what is learned and whose call returns a Gaussian value.

A new method is a new class here, never a new layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import Gaussian, at_least_float32


class WeightDistribution(nn.Module, ABC):
    """The distribution of one parameter. Calling it gives a `Gaussian` in the parameter's own shape."""

    shape: torch.Size
    rank: int | None = None
    """C_pip, where there is a seed."""

    @abstractmethod
    def forward(self) -> Gaussian:
        """Decode the distribution from the parameters."""

    @classmethod
    @abstractmethod
    def blank(cls, shape: torch.Size, rank: int | None) -> WeightDistribution:
        """One with the parameters of this shape and rank, their values not yet set."""

    @property
    def num_weights(self) -> int:
        """How many weights it describes, however few parameters it stores."""
        return self.shape.numel()


class MeanField(WeightDistribution):
    """A mean and a rho for every weight: the ordinary Bayesian neural network."""

    def __init__(self, weight: Tensor, rho_offset: float = -5.0) -> None:
        super().__init__()
        self.shape = weight.shape
        self.mean = nn.Parameter(weight.detach().clone())
        self.rho = nn.Parameter(torch.full_like(weight, rho_offset, requires_grad=False))

    @classmethod
    def blank(cls, shape: torch.Size, rank: int | None = None) -> MeanField:
        """See `WeightDistribution.blank`."""
        return cls(torch.empty(shape))

    def forward(self) -> Gaussian:
        """Mean and softplus(rho), as stored."""
        return Gaussian.from_rho(self.mean, self.rho)


class KernelSeed(WeightDistribution):
    """A small seed, and two germinators that decode the mean and rho from it.

    With C_f the smaller and C_F the larger of the weight's first two axes and k... the others, the seed is
    (rank, C_F, k...) and each germinator (C_f, rank): a 1x1 convolution without bias. `rho_offset` is one
    learned number for the layer, without which softplus would start every sigma near .69.
    """

    def __init__(self, seed: Tensor, mean_germinator: Tensor, rho_offset: float, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.seed = nn.Parameter(seed)
        self.mean_germinator = nn.Parameter(mean_germinator)
        # From zero: every rho starts at the offset, and the first gradient already tells the rows apart.
        self.rho_germinator = nn.Parameter(torch.zeros_like(mean_germinator))
        self.rho_offset = nn.Parameter(mean_germinator.new_full((1,), rho_offset))
        self.rank = len(seed)

    @classmethod
    def blank(cls, shape: torch.Size, rank: int | None) -> KernelSeed:
        """See `WeightDistribution.blank`."""
        return cls(*_blank_factors(shape, rank), 0.0, shape)

    def forward(self) -> Gaussian:
        """Both germinators in one matrix product."""
        mean, rho = germinate_matrix(torch.cat((self.mean_germinator, self.rho_germinator)), self.seed).chunk(2)
        rho = at_least_float32(rho) + self.rho_offset
        return Gaussian.from_rho(fold(mean, self.shape), fold(rho, self.shape))


class FixedKernelSeed(WeightDistribution):
    """The fixed-point kernel seed (FKSN): a seed and one germinator; no distribution, KL 0."""

    def __init__(self, seed: Tensor, mean_germinator: Tensor, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.seed = nn.Parameter(seed)
        self.mean_germinator = nn.Parameter(mean_germinator)
        self.rank = len(seed)

    @classmethod
    def blank(cls, shape: torch.Size, rank: int | None) -> FixedKernelSeed:
        """See `WeightDistribution.blank`."""
        return cls(*_blank_factors(shape, rank), shape)

    def forward(self) -> Gaussian:
        """The germinated mean alone."""
        return Gaussian(fold(germinate_matrix(self.mean_germinator, self.seed), self.shape), None)


# --- germination as matrices: a weight (C_out, C_in, k...) is a matrix (C_f, C_F * prod(k)) ---------------------


def germinate_matrix(germinators: Tensor, seed: Tensor) -> Tensor:
    """The 1x1 convolution: germinators (C, rank) times seed (rank, C_F * prod(k))."""
    if not seed.is_cpu:
        return germinators @ seed.flatten(1)
    # A CPU without bfloat16 units multiplies it a hundred times slower than float32.
    with torch.autocast("cpu", enabled=False):
        return germinators @ seed.flatten(1)


def is_transposed(shape: torch.Size) -> bool:
    """Whether C_F, the larger channel axis, is the weight's first: germination then swaps the two."""
    return shape[0] > shape[1]


def fold(matrix: Tensor, shape: torch.Size) -> Tensor:
    """From the germinated matrix (C_f, C_F * prod(k)) to the weight's own shape."""
    if not is_transposed(shape):
        return matrix.reshape(shape)
    return matrix.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)


def unfold(weight: Tensor) -> Tensor:
    """From a weight to the matrix (C_f, C_F * prod(k)) that germination makes: `fold`'s inverse."""
    return (weight.transpose(0, 1) if is_transposed(weight.shape) else weight).flatten(1)


def seed_rank(shape: torch.Size, delta: float, min_rank: int) -> int:
    """C_pip = min(C_f, max(min_rank, ceil(delta * C_f)))."""
    narrow = min(shape[:2])
    # delta * C_f may miss a whole number by a rounding: .07 * 100 is 7.000000000000001, not 8 channels.
    return min(narrow, max(min_rank, math.ceil(delta * narrow - 1e-9)))


def _seed_shape(shape: torch.Size, rank: int) -> tuple[int, ...]:
    return (rank, max(shape[:2]), *shape[2:])


def _blank_factors(shape: torch.Size, rank: int | None) -> tuple[Tensor, Tensor]:
    if rank is None:
        raise ValueError("rank is None; a seed needs its number of channels.")
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

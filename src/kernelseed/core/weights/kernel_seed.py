"""The kernel seed: one small seed for the mean and rho."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import Gaussian, Sample, at_least_float32
from kernelseed.core.noise import Noise
from kernelseed.core.weights.base import WeightDistribution
from kernelseed.core.weights.factors import blank_factors
from kernelseed.core.weights.fused_sample import FusedSample
from kernelseed.fast import draw_kernel_seed, fold, germinate_matrix, is_transposed, supports


class KernelSeed(WeightDistribution):
    """A small seed, and two germinators that decode the mean and rho from it.

    Let C_f be the smaller and C_F the larger of the first two axes of the weight, and k... the others. The seed is
    (rank, C_F, k...), and each germinator, a 1x1 convolution without bias, is (C_f, rank). `rho_offset` is one learned
    number per layer; without it every sigma would start near softplus(0) = .69.
    """

    rank: int

    def __init__(self, seed: Tensor, mean_germinator: Tensor, rho_offset: float, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.rank = len(seed)
        self.seed = nn.Parameter(seed)
        self.mean_germinator = nn.Parameter(mean_germinator)
        # Zero, so that every rho starts at the offset; the rows already differ in their first gradient.
        self.rho_germinator = nn.Parameter(torch.zeros_like(mean_germinator))
        self.rho_offset = nn.Parameter(mean_germinator.new_full((1,), rho_offset))

    def moments(self) -> Gaussian:
        """Mean and standard deviation, germinated in one matrix product."""
        return Gaussian.from_rho(*self._germinate(), swapped=is_transposed(self.shape))

    def sample(self, noise: Noise) -> Sample:
        """One product and one pass over memory if the kernels support it."""
        parameters = (self.seed, self.mean_germinator, self.rho_germinator, self.rho_offset)
        if not supports(*parameters):
            return super().sample(noise)
        return FusedSample(
            draw_kernel_seed(*parameters, self.shape, noise.stream), self._germinate, noise, is_transposed(self.shape)
        )

    def _germinate(self) -> tuple[Tensor, Tensor]:
        """The mean and rho of every weight."""
        mean, rho = germinate_matrix(torch.cat((self.mean_germinator, self.rho_germinator)), self.seed).chunk(2)
        rho = at_least_float32(rho) + self.rho_offset
        return fold(mean, self.shape), fold(rho, self.shape)

    def factors(self) -> tuple[Tensor, Tensor]:
        """The germinator of the mean, and the seed."""
        return self.mean_germinator, self.seed

    def spec(self) -> dict[str, Any]:
        """Its shape and rank."""
        return {"shape": list(self.shape), "rank": self.rank}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> KernelSeed:
        """See `WeightDistribution.from_spec`."""
        shape = torch.Size(spec["shape"])
        return cls(*blank_factors(shape, spec["rank"]), 0.0, shape)

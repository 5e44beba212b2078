"""The kernel seed: one small seed for the mean and rho."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import Decoded, Gaussian, Sample, at_least_float32
from kernelseed.core.noise import Noise
from kernelseed.core.rho_gaussian import RhoGaussian
from kernelseed.core.weights.base import WeightDistribution
from kernelseed.core.weights.factors import blank_factors
from kernelseed.core.weights.fused_sample import FusedSample
from kernelseed.fast import (
    draw_kernel_seed,
    germinate_both,
    germinate_matrix,
    in_bfloat16,
    in_blocks,
    is_transposed,
    stack,
    supports,
)


class KernelSeed(WeightDistribution):
    """A small seed, and two germinators that decode the mean and rho from it.

    Let C_f be the smaller and C_F the larger of the first two axes of the weight, and k... the others. The seed is
    (rank, C_F, k...), and each germinator, a 1x1 convolution without bias, is (C_f, rank). `rho_offset` is one learned
    number per layer; without it every sigma would start near softplus(0) = .69.
    """

    rank: int
    rhos = ("rho_germinator", "rho_offset")
    seeds = ("seed",)
    germinators = ("mean_germinator", "rho_germinator", "rho_offset")

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
        """The Gaussian of the germinated mean and rho."""
        return self.decoded().moments()

    def decoded(self) -> RhoGaussian:
        """Mean and rho, germinated as in a draw."""
        mean, rho = germinate_both(self.mean_germinator, self.rho_germinator, self.seed)
        rho = at_least_float32(rho) + self.rho_offset
        return RhoGaussian(mean, rho, self.shape, swapped=is_transposed(self.shape))

    @classmethod
    def decoded_together(cls, weights: Sequence[KernelSeed]) -> Sequence[Decoded]:
        """Seeds of equal shapes are germinated in one batched product."""
        if cls is not KernelSeed:  # a subclass may decode in another way
            return super().decoded_together(weights)
        alike: dict[Hashable, list[KernelSeed]] = {}
        for weight in weights:
            alike.setdefault((weight.shape, weight.rank, weight.seed.dtype, weight.seed.device), []).append(weight)
        decoded: dict[KernelSeed, Decoded] = {}
        for group in alike.values():
            for batch in in_blocks(group, lambda weight: weight.num_weights, group[0].seed.device):
                decoded |= zip(batch, _germinate_batch(batch), strict=True)
        return [decoded[weight] for weight in weights]

    def fused(self, noise: Noise) -> Sample | None:
        """One product and one pass over memory if the kernels support it."""
        parameters = (self.seed, self.mean_germinator, self.rho_germinator, self.rho_offset)
        if not supports(*parameters):
            return None
        return FusedSample(draw_kernel_seed(*parameters, self.shape, noise.stream), self.decoded, noise)

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


def _germinate_batch(weights: Sequence[KernelSeed]) -> Sequence[RhoGaussian]:
    """What `decoded` gives for each of these, which have the same shape and rank."""
    if len(weights) == 1 or any(in_bfloat16(weights[0].seed)):
        return [weight.decoded() for weight in weights]
    germinators = stack([g for w in weights for g in (w.mean_germinator, w.rho_germinator)])
    seeds = stack([w.seed for w in weights])
    both = germinate_matrix(germinators.view(len(weights), -1, weights[0].rank), seeds)
    mean, rho = both.view(len(weights), 2, -1).unbind(1)
    rho = at_least_float32(rho) + stack([w.rho_offset for w in weights])
    shape, swapped = weights[0].shape, is_transposed(weights[0].shape)
    return [RhoGaussian(m, r, shape, swapped) for m, r in zip(mean.unbind(), rho.unbind(), strict=True)]

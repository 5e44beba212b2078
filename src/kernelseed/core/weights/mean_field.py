"""The mean-field weight of an ordinary Bayesian neural network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import Gaussian, Sample
from kernelseed.core.noise import Noise
from kernelseed.core.rho_gaussian import RHO_OFFSET, RhoGaussian
from kernelseed.core.weights.base import WeightDistribution
from kernelseed.core.weights.fused_sample import FusedSample
from kernelseed.fast import draw_mean_field, supports


class MeanField(WeightDistribution):
    """A mean mu and a rho for every weight; sigma = softplus(rho)."""

    rhos = ("rho",)

    def __init__(self, weight: Tensor, rho_offset: float = RHO_OFFSET) -> None:
        super().__init__()
        self.shape = weight.shape
        self.mu = nn.Parameter(weight.detach().clone())
        self.rho = nn.Parameter(torch.full_like(weight, rho_offset, requires_grad=False))

    def moments(self) -> Gaussian:
        """mu and softplus(rho)."""
        return self.decoded().moments()

    def decoded(self) -> RhoGaussian:
        """mu and rho."""
        return RhoGaussian(self.mu, self.rho, self.shape)

    def fused(self, noise: Noise) -> Sample | None:
        """One pass over memory if the kernels support it."""
        if not supports(self.mu, self.rho):
            return None
        return FusedSample(draw_mean_field(self.mu, self.rho, noise.stream), self.decoded, noise)

    def spec(self) -> dict[str, Any]:
        """Its shape."""
        return {"shape": list(self.shape)}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> MeanField:
        """See `WeightDistribution.from_spec`."""
        return cls(torch.empty(spec["shape"]))

"""A Gaussian before its standard deviation is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelseed.core.distributions import Gaussian, Sample
from kernelseed.core.noise import Noise
from kernelseed.fast import stored_as

RHO_OFFSET = -5.0
"""Where rho starts, unless it is said: a sigma of .0067."""


@dataclass(frozen=True, eq=False)
class RhoGaussian:
    """A Gaussian stated by mean and rho, before softplus, which is computed for all weights of a draw at once.

    mean, rho  in any shape, with their elements in the order of the noise
    """

    mean: Tensor
    rho: Tensor
    shape: torch.Size
    swapped: bool = False
    fixed = False

    def moments(self) -> Gaussian:
        """The Gaussian."""
        return Gaussian.from_rho(*self.in_shape(), swapped=self.swapped)

    def in_shape(self) -> tuple[Tensor, Tensor]:
        """Mean and rho in the shape of the weight."""
        return stored_as(self.mean, self.shape, self.swapped), stored_as(self.rho, self.shape, self.swapped)

    def kl(self, sample: Sample) -> Tensor:
        """The KL divergence of the sample's Gaussian from this one, summed."""
        return self.moments().kl(sample)

    def sample(self, noise: Noise) -> Sample:
        """Draw once."""
        return self.moments().sample(noise)

    def at_mean(self) -> Sample:
        """The mean, as a sample."""
        return self.moments().at_mean()

    @property
    def gaussians(self) -> Sequence[RhoGaussian]:
        """Itself."""
        return (self,)

    def joined(self, samples: Sequence[Sample]) -> Sample:
        """Its one sample."""
        return samples[0]

    def stored(self) -> tuple[Tensor, ...]:
        """Mean and rho."""
        return self.mean, self.rho

    def restated(self, *flat: Tensor) -> Gaussian:
        """The Gaussian of these in their place."""
        mean, rho = flat
        return Gaussian.from_rho(mean, rho)

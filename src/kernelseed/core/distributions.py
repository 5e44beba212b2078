"""Gaussian weights as values: a mean and a standard deviation to draw from and to measure, never remembered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Prior(Protocol):
    """What a prior over weights has to offer."""

    def kl(self, sample: Sample) -> Tensor:
        """The KL divergence's estimate from one sample, summed over its weights."""
        ...


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision is for storage and matrix products; densities and softplus are taken in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def softplus(rho: Tensor) -> Tensor:
    """log(1 + exp(rho)), never exactly zero: a weight must not lose its variance to rounding."""
    rho = at_least_float32(rho)
    # torch's default threshold of 20 is exact in float32 only.
    return F.softplus(rho, threshold=40.0).clamp_min(torch.finfo(rho.dtype).tiny)


def log_softplus(rho: Tensor) -> Tensor:
    """log softplus(rho), with the right value and slope where softplus itself underflows."""
    rho = at_least_float32(rho)
    # Below the knee softplus(rho) = exp(rho) to the last bit, so its logarithm is rho itself.
    knee = -36.0 if rho.dtype == torch.float64 else -16.0
    return torch.where(rho < knee, rho, softplus(rho.clamp_min(knee)).log())


def inverse_softplus(std: Tensor) -> Tensor:
    """The rho whose softplus is std."""
    std = at_least_float32(std)
    return std + torch.log(-torch.expm1(-std))


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Independent normal weights. `std=None` is a fixed point: every draw is the mean and has no KL.

    >>> g = Gaussian(torch.zeros(2, 3), torch.ones(2, 3))
    >>> g.sample().value.shape
    torch.Size([2, 3])
    """

    mean: Tensor
    std: Tensor | None
    log_std: Tensor | None = None
    """Given where it is known better than `std.log()`, as it is for a tiny std made from rho."""

    @classmethod
    def from_rho(cls, mean: Tensor, rho: Tensor) -> Gaussian:
        """The paper's parameterisation: std = log(1 + exp(rho))."""
        return cls(mean, softplus(rho), log_softplus(rho))

    def sample(self, generator: torch.Generator | None = None) -> Sample:
        """Draw once: mean + std * noise, differentiable in both."""
        if self.std is None:
            return self.at_mean()
        noise = torch.randn(self.std.shape, generator=generator, device=self.std.device, dtype=self.std.dtype)
        return Sample((self.mean + self.std * noise).to(self.mean.dtype), self, noise)

    def at_mean(self) -> Sample:
        """The mean, as a sample."""
        return Sample(self.mean, self, None)


@dataclass(frozen=True, eq=False)
class Sample:
    """A concrete weight, the Gaussian that it was drawn from and the noise that made it (None: the mean)."""

    value: Tensor
    source: Gaussian
    noise: Tensor | None

    @property
    def operand(self) -> Tensor:
        """What the network's layers are given: the value, or something that acts like it at less cost."""
        return self.value

    @property
    def fixed(self) -> bool:
        """Whether the weight has no distribution, and so no KL."""
        return self.source.std is None

    def kl(self, prior: Prior) -> Tensor:
        """The KL divergence's estimate from this sample, summed over its weights."""
        return prior.kl(self)

    def log_prob(self) -> Tensor:
        """log q(value), elementwise. The noise says it exactly: no difference of near-equal numbers."""
        if self.source.std is None:
            raise ValueError("a fixed weight (std=None) has no density; its KL is 0, so leave it out of the sum.")
        log_std = self.source.std.log() if self.source.log_std is None else self.source.log_std
        if self.noise is None:
            return -log_std - LOG_SQRT_2PI
        return -log_std - 0.5 * self.noise.square() - LOG_SQRT_2PI

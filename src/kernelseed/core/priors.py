"""Priors over weights: values that are passed to `draw.kl`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelseed.core.distributions import Prior, Sample, at_least_float32, gaussian_kl
from kernelseed.errors import ArgumentError
from kernelseed.fast import LOG_SQRT_2PI

__all__ = ["Elementwise", "Gaussian", "Prior", "ScaleMixture"]


def _log_normal(w: Tensor, sigma: float) -> Tensor:
    return -0.5 * (w / sigma).square() - (math.log(sigma) + LOG_SQRT_2PI)


class Elementwise:
    """A prior that treats each weight alone, whatever the shapes: the KL of several tensors is that of one."""


@dataclass(frozen=True)
class ScaleMixture(Elementwise):
    """pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2), independently for each weight.

    The defaults are those of the paper: pi = 1/4, -log sigma1^2 = 0 and -log sigma2^2 = 6.
    Bayes by Backprop states its numbers for -log sigma instead: see `ScaleMixture.blundell()`.

    >>> round(ScaleMixture().sigma2, 4), round(ScaleMixture.blundell().sigma2, 4)
    (0.0498, 0.0025)
    """

    pi: float = 0.25
    sigma1: float = 1.0
    sigma2: float = math.exp(-3)

    def __post_init__(self) -> None:
        if not 0 < self.pi < 1:
            raise ArgumentError(
                f"pi is {self.pi}; a mixture needs 0 < pi < 1. For a single normal use priors.Gaussian(std)."
            )
        for name, sigma in (("sigma1", self.sigma1), ("sigma2", self.sigma2)):
            _check_std(name, sigma)

    @classmethod
    def blundell(cls) -> ScaleMixture:
        """The reading of Blundell et al. (2015): -log sigma1 = 0, -log sigma2 = 6."""
        return cls(0.25, 1.0, math.exp(-6))

    def log_prob(self, w: Tensor) -> Tensor:
        """log P(w), elementwise."""
        # log(a + b) = log a + softplus(log b - log a); both logarithms are a constant minus a multiple of the square.
        square = at_least_float32(w).square()
        wide, narrow = (0.5 / sigma**2 for sigma in (self.sigma1, self.sigma2))
        odds = math.log1p(-self.pi) - math.log(self.pi) + math.log(self.sigma1) - math.log(self.sigma2)
        constant = math.log(self.pi) - math.log(self.sigma1) - LOG_SQRT_2PI
        share = F.softplus(torch.rsub(square, odds, alpha=narrow - wide), threshold=40.0)
        return share + torch.rsub(square, constant, alpha=wide)

    def kl(self, sample: Sample) -> Tensor:
        """log q(w) - log P(w), summed: the one-sample estimate that Bayes by Backprop uses."""
        return (sample.log_prob() - self.log_prob(sample.value)).sum()


@dataclass(frozen=True)
class Gaussian(Elementwise):
    """N(mean, std^2). The KL of a Gaussian weight has a closed form, so it has no sampling noise."""

    std: float = 1.0
    mean: float = 0.0

    def __post_init__(self) -> None:
        _check_std("std", self.std)

    def log_prob(self, w: Tensor) -> Tensor:
        """log P(w), elementwise."""
        return _log_normal(at_least_float32(w) - self.mean, self.std)

    def kl(self, sample: Sample) -> Tensor:
        """The closed form, summed. It depends on the distribution of the sample, not on its value."""
        return gaussian_kl(sample.source, self.mean, self.std, math.log(self.std))


def _check_std(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ArgumentError(f"{name} is {value}; a standard deviation must be positive and finite.")

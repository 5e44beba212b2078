"""Gaussians on the factors: a weight that is the product of a random germinator and a random seed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import (
    Gaussian,
    Prior,
    Sample,
    as_when_drawn,
    at_least_float32,
    inverse_softplus,
)
from kernelseed.core.noise import Noise
from kernelseed.core.rho_gaussian import RhoGaussian
from kernelseed.core.weights.base import WeightDistribution
from kernelseed.core.weights.factors import blank_factors
from kernelseed.core.weights.fixed_kernel_seed import FactorSample
from kernelseed.core.weights.fused_sample import FusedSample
from kernelseed.errors import ArgumentError
from kernelseed.fast import ProductWeight, draw_mean_field, fold, germinate_matrix, is_traced, is_transposed, supports


class GaussianFactors(WeightDistribution):
    """The seed and the germinator are Gaussians, and the weight is their product (Singular BNN, 2026).

    A draw is itself a low-rank weight, so it runs as two thin layers. The KL is that of the factors. Every element has
    its own rho or, with `by_channel`, every channel of the seed and every column of the germinator has one.
    """

    rank: int
    rhos = ("seed_rho", "germinator_rho")
    seeds = ("seed", "seed_rho")
    germinators = ("mean_germinator", "germinator_rho")

    def __init__(
        self, seed: Tensor, mean_germinator: Tensor, shape: torch.Size, *, by_channel: bool = False, sigma: float = 0.05
    ) -> None:
        super().__init__()
        self.shape = shape
        self.rank = len(seed)
        self.by_channel = by_channel
        self.seed = nn.Parameter(seed)
        self.mean_germinator = nn.Parameter(mean_germinator)
        channels = (self.rank, *(1 for _ in seed.shape[1:])), (1, self.rank)
        shapes = channels if by_channel else (seed.shape, mean_germinator.shape)
        self.seed_rho, self.germinator_rho = (
            nn.Parameter(rho_of_share(factor, sigma).expand(each).clone())
            for factor, each in zip((seed, mean_germinator), shapes, strict=True)
        )

    def decoded(self) -> FactorGaussians:
        """The Gaussians of the two factors."""
        return FactorGaussians(self._factor(0), self._factor(1), self.shape)

    def _factor(self, part: int) -> RhoGaussian:
        mean, rho = (self.seed, self.seed_rho) if part else (self.mean_germinator, self.germinator_rho)
        # Contiguous, so that every use of it rounds alike.
        return RhoGaussian(mean, rho.expand_as(mean).contiguous(), mean.shape)

    def fused(self, noise: Noise) -> Sample | None:
        """Both factors, each in one pass over its memory."""
        if not supports(self.mean_germinator, self.germinator_rho, self.seed, self.seed_rho):
            return None

        def draw(part: int) -> FusedSample:
            factor, own = self._factor(part), noise.for_part(part)
            drawn = draw_mean_field(factor.mean, factor.rho, own.stream)
            return FusedSample(drawn, lambda: factor, own)

        return ProductSample(draw(0), draw(1), self.shape)

    def moments(self) -> Gaussian:
        """The exact mean and standard deviation of each weight. Weights of one layer are not independent."""
        return self.decoded().moments()

    def factors(self) -> tuple[Tensor, Tensor]:
        """The means of the germinator and of the seed."""
        return self.mean_germinator, self.seed

    def spec(self) -> dict[str, Any]:
        """Its shape and rank, and how many rhos it has."""
        return {"shape": list(self.shape), "rank": self.rank, "by_channel": self.by_channel}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> GaussianFactors:
        """See `WeightDistribution.from_spec`."""
        shape = torch.Size(spec["shape"])
        return cls(*blank_factors(shape, spec["rank"]), shape, by_channel=spec["by_channel"])


def rho_of_share(tensor: Tensor, share: float) -> Tensor:
    """The rho whose sigma is this share of the tensor's root mean square."""
    root_mean_square = at_least_float32(tensor.detach()).square().mean().sqrt()
    return inverse_softplus((share * root_mean_square).clamp_min(1e-6)).to(tensor.dtype)


@dataclass(frozen=True, eq=False)
class FactorGaussians:
    """The Gaussians of a germinator and of a seed, from which products are drawn."""

    germinator: Gaussian | RhoGaussian
    seed: Gaussian | RhoGaussian
    shape: torch.Size
    fixed = False

    @property
    def gaussians(self) -> Sequence[Gaussian | RhoGaussian]:
        """Those of the germinator and of the seed."""
        return self.germinator, self.seed

    def joined(self, samples: Sequence[Sample]) -> Sample:
        """The product of their samples."""
        germinator, seed = samples
        return ProductSample(germinator, seed, self.shape)

    def sample(self, noise: Noise) -> Sample:
        """Both factors, each with a part of the noise."""
        return self.joined([g.sample(noise.for_part(i)) for i, g in enumerate(self.gaussians)])

    def at_mean(self) -> Sample:
        """The product of the means."""
        return ProductSample(self.germinator.at_mean(), self.seed.at_mean(), self.shape)

    def kl(self, sample: Sample) -> Tensor:
        """The sum over both factors of a product sample."""
        if not isinstance(sample, ProductSample):
            raise ArgumentError(
                "the prior has Gaussians on its factors and the weight does not; both must be of the same kind."
            )
        ranks = sample.seed.value.shape[0], self.seed.shape[0]
        if sample.shape != self.shape or ranks[0] != ranks[1]:
            raise ArgumentError(
                f"the weight of shape {tuple(sample.shape)} has a seed of rank {ranks[0]}, and its prior, of shape "
                f"{tuple(self.shape)}, one of rank {ranks[1]}; both must be of the same size: shrink before as_prior()."
            )
        return sample.germinator.kl(self.germinator) + sample.seed.kl(self.seed)

    def moments(self) -> Gaussian:
        """The moments of a sum of products of independent variables: Var[g s] = E[g]^2 Var[s] + Var[g] E[s^2]."""
        germinator, seed = self.germinator.moments(), self.seed.moments()
        assert germinator.std is not None
        assert seed.std is not None
        g, s = at_least_float32(germinator.mean).square(), at_least_float32(seed.mean).square()
        dg, ds = germinator.std.square(), seed.std.square()
        variance = germinate_matrix(g, ds) + germinate_matrix(dg, s + ds)
        mean = germinate_matrix(germinator.mean, seed.mean)
        std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        return Gaussian(fold(mean, self.shape), fold(std, self.shape), swapped=is_transposed(self.shape))


class ProductSample(Sample):
    """A drawn germinator times a drawn seed: it runs as two thin layers where that is cheaper."""

    noise = None
    fixed = False

    def __init__(self, germinator: Sample, seed: Sample, shape: torch.Size) -> None:
        self.germinator, self.seed, self.shape = germinator, seed, shape
        self._multiplied_out = as_when_drawn(self._multiply_out)

    def _multiply_out(self) -> Gaussian:
        return Gaussian(fold(germinate_matrix(self.germinator.value, self.seed.value), self.shape), None)

    @functools.cached_property
    def value(self) -> Tensor:
        """The dense weight."""
        return self._multiplied_out().mean

    @property
    def source(self) -> Gaussian:
        """The moments of the product, which is not a Gaussian."""
        return FactorGaussians(self.germinator.source, self.seed.source, self.shape).moments()

    @property
    def operand(self) -> Tensor:
        """A tensor subclass that runs as two layers, or as their product if that is cheaper."""
        # torch.compile and torch.func need plain tensors, and no cached property.
        if is_traced():
            return self._multiply_out().mean
        return ProductWeight.of(self.germinator.value, self.seed.value, self.shape, lambda: self.value)

    @property
    def num_weights(self) -> int:
        """The number of random variables: those of the factors."""
        return self.germinator.num_weights + self.seed.num_weights

    def at(self, places: Tensor) -> Sample:
        """Itself: each of its random variables belongs to many weights."""
        return self

    @property
    def parts(self) -> Sequence[Sample]:
        """Both factors."""
        return self.germinator, self.seed

    def kl(self, prior: Prior) -> Tensor:
        """The sum over both factors, each with its own prior if this one has two."""
        if isinstance(prior, FactorGaussians):
            return prior.kl(self)
        if isinstance(prior, Gaussian | RhoGaussian):
            raise ArgumentError(
                "the prior has a Gaussian for each weight, and the weight has them on its factors; both must be of "
                "the same kind."
            )
        return self.germinator.kl(prior) + self.seed.kl(prior)

    def log_prob(self) -> Tensor:
        """Not available: the density of a product has no closed form."""
        raise ArgumentError("a product of Gaussians has no density in closed form; its KL is that of its factors.")

    def values_only(self) -> Sample:
        """The factors as plain tensors."""
        germinator, seed = (factor.value.detach() for factor in (self.germinator, self.seed))
        return FactorSample(
            germinator, seed, self.shape, lambda: Gaussian(fold(germinate_matrix(germinator, seed), self.shape), None)
        )

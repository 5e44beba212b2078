"""The fixed-point kernel seed (FKSN): a low-rank weight without a distribution."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import Gaussian, Sample, as_when_drawn
from kernelseed.core.noise import Noise
from kernelseed.core.weights.base import WeightDistribution
from kernelseed.core.weights.factors import blank_factors
from kernelseed.fast import ProductWeight, fold, germinate_matrix, is_traced, one_pass


class FixedKernelSeed(WeightDistribution):
    """A seed and one germinator, without a distribution; its KL is 0."""

    rank: int
    seeds = ("seed",)
    germinators = ("mean_germinator",)

    def __init__(self, seed: Tensor, mean_germinator: Tensor, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.rank = len(seed)
        self.seed = nn.Parameter(seed)
        self.mean_germinator = nn.Parameter(mean_germinator)

    def moments(self) -> Gaussian:
        """The germinated mean, without a standard deviation."""
        (mean,) = one_pass(germinate_matrix(self.mean_germinator, self.seed))
        return Gaussian(fold(mean, self.shape), None)

    def sample(self, noise: Noise) -> Sample:
        """The mean, whatever the noise."""
        return self.mean()

    def mean(self) -> Sample:
        """The weight as its two factors, which are multiplied out only where that is cheaper."""
        # torch.compile and torch.func need plain tensors.
        if is_traced():
            return super().mean()
        return FactorSample(self.mean_germinator, self.seed, self.shape, self.moments)

    def factors(self) -> tuple[Tensor, Tensor]:
        """The germinator and the seed."""
        return self.mean_germinator, self.seed

    def spec(self) -> dict[str, Any]:
        """Its shape and rank."""
        return {"shape": list(self.shape), "rank": self.rank}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> FixedKernelSeed:
        """See `WeightDistribution.from_spec`."""
        shape = torch.Size(spec["shape"])
        return cls(*blank_factors(shape, spec["rank"]), shape)


class FactorSample(Sample):
    """A fixed weight that runs as two thin layers; its factors are multiplied when `value` is first read."""

    noise = None

    def __init__(self, germinator: Tensor, seed: Tensor, shape: torch.Size, decode: Callable[[], Gaussian]) -> None:
        self._germinator, self._seed, self._shape, self._decode = germinator, seed, shape, as_when_drawn(decode)

    @functools.cached_property
    def source(self) -> Gaussian:
        """The germinated mean, computed once."""
        return self._decode()

    @functools.cached_property
    def value(self) -> Tensor:
        """The dense weight."""
        return self.source.mean

    @property
    def fixed(self) -> bool:
        """Always."""
        return True

    @property
    def operand(self) -> Tensor:
        """A tensor subclass that runs as two layers, or as their product if that is cheaper."""
        return ProductWeight.of(self._germinator, self._seed, self._shape, lambda: self.value)

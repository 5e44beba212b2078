"""The base class of weight distributions. A new method is a new class in its own file, never a new layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import Decoded, Gaussian, Sample
from kernelseed.core.noise import Noise


class WeightDistribution(nn.Module, ABC):
    """The distribution of one parameter: a module that owns the learned parameters and makes the samples.

    A subclass needs `moments`, `spec` and `from_spec`. It may override `sample` and `mean` with something faster, and
    `factors` if its mean is a product. `kernelseed.testing` has a test suite for it. A network draws those without a
    `sample` of their own together, in a few operations for all.
    """

    shape: torch.Size
    """The shape of the parameter."""
    rank: int | None = None
    """C_pip, if there is a seed."""
    rhos: tuple[str, ...] = ()
    """The names of its parameters that decide the standard deviations: see `BayesianModule.parameter_groups`."""
    seeds: tuple[str, ...] = ()
    """Those that are a seed or decide its deviations."""
    germinators: tuple[str, ...] = ()
    """Those that decode it, or decide the deviations of what does."""

    @abstractmethod
    def moments(self) -> Gaussian:
        """The mean and standard deviation of every weight, in the shape of the parameter; differentiable."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """The arguments of `from_spec`, as JSON values; parameters are stored separately."""

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: dict[str, Any]) -> WeightDistribution:
        """A distribution with parameters of the right shapes, whose values are not yet set."""

    def sample(self, noise: Noise) -> Sample:
        """A concrete weight that can compute its KL. The same noise gives the same weight."""
        drawn = self.fused(noise)
        return self.decoded().sample(noise) if drawn is None else drawn

    def fused(self, noise: Noise) -> Sample | None:
        """The sample in one pass over memory, where there is a kernel for it that supports its tensors."""
        return None

    def mean(self) -> Sample:
        """The posterior mean, as a sample."""
        return self.decoded().at_mean()

    def decoded(self) -> Decoded:
        """The decoded distribution for many draws, so that their shared work is done once."""
        return self.moments()

    @classmethod
    def decoded_together(cls, weights: Sequence[Any]) -> Sequence[Decoded]:
        """Several of this class decoded, with fewer operations than one by one if there is a way."""
        return [weight.decoded() for weight in weights]

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """(germinator, seed) if the mean is their product, else None; see `kernelseed.factorise`."""
        return None

    @property
    def num_weights(self) -> int:
        """The number of weights, not of stored parameters."""
        return self.shape.numel()

    def extra_repr(self) -> str:
        """The shape, the rank of a seed, and what is stored for how many weights."""
        stored = sum(parameter.numel() for parameter in self.parameters())
        rank = "" if self.rank is None else f", rank {self.rank}"
        return f"{tuple(self.shape)}{rank}, {stored:,} parameters for {self.num_weights:,} weights"

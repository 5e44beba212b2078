"""What a weight distribution is. A new method is a new class, in a file of its own, and never a new layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import Decoded, Gaussian, Sample
from kernelseed.core.noise import Noise


class WeightDistribution(nn.Module, ABC):
    """The distribution of one parameter: a module that owns what is learned, and draws itself.

    A new one needs `moments`, `spec` and `from_spec`. It may override `sample` and `mean` where it knows a faster way,
    and `factors` if its mean is a product. `kernelseed.testing` proves that it keeps the contract.
    """

    shape: torch.Size
    """The shape of the parameter."""
    rank: int | None = None
    """C_pip, where there is a seed."""

    @abstractmethod
    def moments(self) -> Gaussian:
        """The mean and standard deviation of every weight, in the parameter's own shape; differentiable."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """What `from_spec` needs to build another one, as JSON; parameters are stored apart."""

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: dict[str, Any]) -> WeightDistribution:
        """One with parameters of the right shapes, their values not yet set."""

    def sample(self, noise: Noise) -> Sample:
        """A concrete weight that knows its KL. The same noise gives the same weight."""
        return self.decoded().sample(noise)

    def mean(self) -> Sample:
        """The posterior mean, as a sample."""
        return self.decoded().at_mean()

    def decoded(self) -> Decoded:
        """What many draws are made from, with the work that they share done once."""
        return self.moments()

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """(germinator, seed) whose product is the mean, where the mean is one; see `kernelseed.factorise`."""
        return None

    @property
    def num_weights(self) -> int:
        """How many weights it describes, however few parameters it stores."""
        return self.shape.numel()

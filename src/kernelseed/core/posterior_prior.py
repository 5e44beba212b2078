"""A posterior as the prior of what is learned next."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch

from kernelseed.core.distributions import Decoded, Prior
from kernelseed.core.rho_gaussian import RhoGaussian
from kernelseed.core.weight_tree import WeightTree
from kernelseed.core.weights.gaussian_factors import FactorGaussians
from kernelseed.errors import ArgumentError


class PosteriorPrior(Mapping[str, Decoded]):
    """The priors of a network's weights, by name: its posterior at one time, which later training does not change.

    It keeps the weight distributions as they are stored and decodes one when it is asked for. The prior of a kernel
    seed network is therefore its seeds, as small as the network. `draw.kl` takes it; where prior and posterior are
    Gaussians, the KL is exact.

    >>> import kernelseed as ks
    >>> net = ks.germinate(torch.nn.Linear(20, 30))
    >>> prior = net.as_prior()
    >>> net.draw().kl(prior).item()
    0.0
    """

    def __init__(self, weights: WeightTree) -> None:
        self.weights = copy.deepcopy(weights).requires_grad_(False)

    def __getitem__(self, name: str) -> Decoded:
        if name not in self.weights:
            raise ArgumentError(
                f"the prior has no weight {name!r}; it has {', '.join(self.weights)}: take the prior of a network with "
                "the same weights, or give one for each weight by name."
            )
        with torch.no_grad():
            return self.weights[name].decoded()

    def decoded(self) -> dict[str, Prior]:
        """All of them decoded, which takes the memory of dense weights: for many KLs, which then are faster."""
        return {name: _with_deviations(each) for name, each in self.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def __contains__(self, name: object) -> bool:
        return name in self.weights

    @property
    def num_parameters(self) -> int:
        """How many numbers it keeps."""
        return sum(parameter.numel() for parameter in self.weights.parameters())


def _with_deviations(decoded: Decoded) -> Decoded:
    """The same, with softplus of each rho computed."""
    if isinstance(decoded, FactorGaussians):
        return FactorGaussians(decoded.germinator.moments(), decoded.seed.moments(), decoded.shape)
    return decoded.moments() if isinstance(decoded, RhoGaussian) else decoded

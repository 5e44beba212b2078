"""A sample made by the C kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from kernelseed.core.distributions import Gaussian, Prior, Sample, as_when_drawn, log_std_of
from kernelseed.core.noise import Noise
from kernelseed.core.priors import Gaussian as WidePrior
from kernelseed.core.priors import ScaleMixture
from kernelseed.fast import Drawn, gaussian_kl_of_rho, scale_mixture_kl


class FusedSample(Sample):
    """A sample whose Gaussian and noise are computed again only when they are read."""

    value: Tensor

    def __init__(self, drawn: Drawn, decode: Callable[[], tuple[Tensor, Tensor]], noise: Noise, swapped: bool) -> None:
        self.value = drawn.value
        self._drawn, self._decode, self._noise, self._swapped = drawn, as_when_drawn(decode), noise, swapped

    @functools.cached_property
    def _mean_and_rho(self) -> tuple[Tensor, Tensor]:
        return self._decode()

    @functools.cached_property
    def source(self) -> Gaussian:
        """The Gaussian, decoded again from the parameters."""
        return Gaussian.from_rho(*self._mean_and_rho, swapped=self._swapped)

    @functools.cached_property
    def noise(self) -> Tensor:
        """The noise, made again."""
        return self.source.normal(self._noise)

    @property
    def fixed(self) -> bool:
        """Never, because fixed weights are not drawn."""
        return False

    def kl(self, prior: Prior) -> Tensor:
        """One pass over memory for the scale mixture, few for Gaussians; plain operations for other priors."""
        if type(prior) is ScaleMixture:
            return scale_mixture_kl(self._drawn, prior.pi, prior.sigma1, prior.sigma2)
        if type(prior) is Gaussian and prior.std is not None:
            return gaussian_kl_of_rho(*self._mean_and_rho, prior.mean, prior.std, log_std_of(prior))
        if type(prior) is WidePrior:
            constants = torch.tensor([prior.mean, prior.std, math.log(prior.std)])
            return gaussian_kl_of_rho(*self._mean_and_rho, *constants)
        return prior.kl(self)

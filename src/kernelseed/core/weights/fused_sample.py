"""A sample made by the C kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import Tensor

from kernelseed.core.distributions import Gaussian, Prior, Sample, as_when_drawn
from kernelseed.core.noise import Noise
from kernelseed.core.priors import ScaleMixture
from kernelseed.fast import Drawn, scale_mixture_kl


class FusedSample(Sample):
    """A sample whose Gaussian and noise are computed again only when they are read."""

    value: Tensor

    def __init__(self, drawn: Drawn, decode: Callable[[], Gaussian], noise: Noise) -> None:
        self.value = drawn.value
        self._has_token = True
        self._drawn, self._decode, self._noise = drawn, as_when_drawn(decode), noise

    @functools.cached_property
    def source(self) -> Gaussian:
        """The Gaussian, decoded again from the parameters."""
        return self._decode()

    @functools.cached_property
    def noise(self) -> Tensor:
        """The noise, made again."""
        return self.source.normal(self._noise)

    @property
    def fixed(self) -> bool:
        """Never, because fixed weights are not drawn."""
        return False

    def kl(self, prior: Prior) -> Tensor:
        """One pass over memory for the scale mixture; plain operations for other priors, and for a second one."""
        if type(prior) is not ScaleMixture or not self._has_token:
            return prior.kl(self)
        kl = scale_mixture_kl(self._drawn, prior.pi, prior.sigma1, prior.sigma2)
        self._has_token = not kl.requires_grad  # the gradient of the token is that of one KL
        return kl

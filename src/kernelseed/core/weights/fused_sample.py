"""A sample made by the C kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernelseed.core.distributions import Gaussian, Prior, Sample, as_when_drawn, log_std_of
from kernelseed.core.noise import Noise
from kernelseed.core.priors import Gaussian as OneGaussian
from kernelseed.core.priors import ScaleMixture
from kernelseed.core.rho_gaussian import RhoGaussian
from kernelseed.fast import Drawn, gaussian_kl_of_rho, scale_mixture_kl


class FusedSample(Sample):
    """A sample whose Gaussian and noise are computed again only when they are read."""

    value: Tensor

    def __init__(self, drawn: Drawn, decode: Callable[[], RhoGaussian], noise: Noise) -> None:
        self.value = drawn.value
        self._has_token = True
        self._drawn, self._noise = drawn, noise
        self._decode, self._moments = as_when_drawn(decode), as_when_drawn(lambda: decode().moments())

    @functools.cached_property
    def source(self) -> Gaussian:
        """The Gaussian, decoded again from the parameters."""
        return self._moments()

    @functools.cached_property
    def noise(self) -> Tensor:
        """The noise, made again."""
        return self.source.normal(self._noise)

    @property
    def fixed(self) -> bool:
        """Never, because fixed weights are not drawn."""
        return False

    def kl(self, prior: Prior) -> Tensor:
        """One pass over memory for a scale mixture, few for Gaussians; plain operations for other priors.

        So are they for a second scale mixture.
        """
        if type(prior) is ScaleMixture and self._has_token:
            kl = scale_mixture_kl(self._drawn, prior.pi, prior.sigma1, prior.sigma2)
            self._has_token = not kl.requires_grad  # the gradient of the token is that of one KL
            return kl
        exact = exact_kl(self._decode, prior)
        return prior.kl(self) if exact is None else exact


def exact_kl(decode: Callable[[], RhoGaussian], prior: Prior) -> Tensor | None:
    """The KL of weights in float32 from a prior that is a Gaussian, in few passes over memory; None for any other."""
    constants = _gaussian_constants(prior)
    return None if constants is None else gaussian_kl_of_rho(*decode().in_shape(), *constants)


def _gaussian_constants(prior: Prior) -> Sequence[Tensor] | None:
    """Mean, standard deviation and its logarithm of a prior that is a Gaussian; None for any other."""
    if type(prior) is OneGaussian:
        return torch.tensor([prior.mean, prior.std, math.log(prior.std)]).unbind()
    if isinstance(prior, RhoGaussian):
        prior = prior.moments()
    if type(prior) is not Gaussian or prior.std is None:
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in prior.stored()):
        return None  # a prior that is learned: the gradient written down is not that of its tensors
    return prior.mean, prior.std, log_std_of(prior)

"""Distributions as values: a Gaussian to draw weights from, and a sample that can compute its KL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelseed.core.noise import Noise
from kernelseed.errors import ArgumentError
from kernelseed.fast import LOG_SQRT_2PI, one_pass, stored_as


class Prior(Protocol):
    """The interface of a prior over weights."""

    def kl(self, sample: Sample) -> Tensor:
        """The estimate of the KL divergence from one sample, summed over its weights."""
        ...


class Decoded(Protocol):
    """A decoded weight distribution, for many draws that share the work."""

    @property
    def fixed(self) -> bool:
        """Whether every draw is the mean."""
        ...

    def sample(self, noise: Noise) -> Sample:
        """Draw once."""
        ...

    def at_mean(self) -> Sample:
        """The mean, as a sample."""
        ...

    def kl(self, sample: Sample) -> Tensor:
        """The KL divergence of a sample's distribution from this one, summed: a decoded distribution is a prior."""
        ...


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to float32, in which densities and softplus are computed."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def softplus(rho: Tensor) -> Tensor:
    """log(1 + exp(rho)), but never exactly zero, so that rounding does not remove the variance of a weight."""
    rho = at_least_float32(rho)
    # torch's default threshold of 20 is exact in float32 only.
    return F.softplus(rho, threshold=40.0).clamp_min(torch.finfo(rho.dtype).tiny)


def log_softplus(rho: Tensor) -> Tensor:
    """log softplus(rho), with the right value and slope also where softplus underflows."""
    rho = at_least_float32(rho)
    # Below the knee softplus(rho) = exp(rho) to the last bit, so its logarithm is rho.
    knee = -36.0 if rho.dtype == torch.float64 else -16.0
    return torch.where(rho < knee, rho, softplus(rho.clamp_min(knee)).log())


def inverse_softplus(std: Tensor) -> Tensor:
    """The rho whose softplus is std."""
    std = at_least_float32(std)
    return std + torch.log(-torch.expm1(-std))


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Independent normal weights. `std=None` means fixed weights: every draw is the mean and has no KL.

    >>> g = Gaussian(torch.zeros(2, 3), torch.ones(2, 3))
    >>> g.sample(Noise.new()).value.shape
    torch.Size([2, 3])
    """

    mean: Tensor
    std: Tensor | None
    log_std: Tensor | None = None
    """Given if it is known more precisely than `std.log()`, as for a tiny std made from rho."""
    swapped: bool = False
    """Whether the noise is made with the first two axes swapped, as germination does."""

    @classmethod
    def from_rho(cls, mean: Tensor, rho: Tensor, *, swapped: bool = False) -> Gaussian:
        """The paper's parameterisation: std = log(1 + exp(rho))."""
        return cls(mean, softplus(rho), log_softplus(rho), swapped)

    def sample(self, noise: Noise) -> Sample:
        """Draw once: mean + std * noise, differentiable in both."""
        return self.at_mean() if self.std is None else self.at(self.normal(noise))

    def at(self, normal: Tensor) -> Sample:
        """The sample that these standard normals give, which have the shape of the weight."""
        assert self.std is not None
        value = torch.addcmul(self.mean.to(self.std.dtype), self.std, normal).to(self.mean.dtype)
        if not torch.is_grad_enabled():
            return GaussianSample(value, self, normal)
        # All gradients flow back through these four tensors.
        value, mean, std, log_std = one_pass(value, self.mean, self.std, log_std_of(self))
        return GaussianSample(value, Gaussian(mean, std, log_std, self.swapped), normal)

    def at_mean(self) -> Sample:
        """The mean, as a sample."""
        return GaussianSample(self.mean, self, None)

    @property
    def fixed(self) -> bool:
        """Whether every draw is the mean."""
        return self.std is None

    def kl(self, sample: Sample) -> Tensor:
        """The KL divergence of the sample's Gaussian from this one, summed: any Gaussian of weights can be a prior."""
        return gaussian_kl(sample.source, at_least_float32(self.mean), self.std, log_std_of(self))

    @property
    def shape(self) -> torch.Size:
        """The shape of the weight."""
        return self.mean.shape

    def moments(self) -> Gaussian:
        """Itself."""
        return self

    @property
    def gaussians(self) -> Sequence[Gaussian]:
        """Itself; see `joint.OfGaussians`."""
        return (self,)

    def joined(self, samples: Sequence[Sample]) -> Sample:
        """Its one sample."""
        return samples[0]

    def stored(self) -> tuple[Tensor, ...]:
        """The tensors that state it, with their elements in the order of the noise."""
        given = (self.mean, self.std, self.log_std)
        return tuple(t.transpose(0, 1) if self.swapped else t for t in given if t is not None)

    def restated(self, *flat: Tensor) -> Gaussian:
        """The Gaussian of these tensors, which are flat, in their place."""
        mean, std = flat[:2]
        return Gaussian(mean, std, flat[2] if len(flat) > 2 else None)

    def normal(self, noise: Noise) -> Tensor:
        """Standard normals in the shape of the weight."""
        assert self.std is not None
        normals = noise.normal((self.std.numel(),), self.std.dtype, self.std.device)
        return stored_as(normals, self.shape, self.swapped)


T = TypeVar("T")


def as_when_drawn(decode: Callable[[], T]) -> Callable[[], T]:
    """Decode later as it would be done now: with the same grad mode and autocast, and without the hooks of that time.

    Autocast decides how germination rounds. Activation checkpointing installs hooks for saved tensors.
    """
    if torch.compiler.is_compiling():  # nothing is decoded later there
        return decode
    with_graph, casts, dtype = (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )

    def decode_later() -> T:
        autocast, no_hooks = torch.autocast("cpu", dtype, casts), torch.autograd.graph.saved_tensors_hooks
        with torch.set_grad_enabled(with_graph), autocast, no_hooks(_itself, _itself):
            return decode()

    return decode_later


def _itself(tensor: Tensor) -> Tensor:
    return tensor


class Sample:
    """A concrete weight that can compute its KL."""

    if TYPE_CHECKING:  # attributes or properties: a subclass may compute them on first access

        @property
        def value(self) -> Tensor:
            """The weight."""

        @property
        def source(self) -> Gaussian:
            """The Gaussian from which it was drawn."""

        @property
        def noise(self) -> Tensor | None:
            """The standard normals of the draw, in the shape of the weight; None at the mean."""

    @property
    def operand(self) -> Tensor:
        """What the layers of the network get: the value, or a tensor subclass that does the same at less cost."""
        return self.value

    @property
    def fixed(self) -> bool:
        """Whether the weight has no distribution and therefore no KL."""
        return self.source.fixed

    @property
    def parts(self) -> Sequence[Sample]:
        """The samples whose KLs add up to its own: of the Gaussians that it is made of, if there are several."""
        return (self,)

    @property
    def num_weights(self) -> int:
        """The number of random variables that the KL covers."""
        return 0 if self.fixed else self.value.numel()

    def values_only(self) -> Sample:
        """The same weight as a contiguous tensor without graph and KL, for many calls."""
        value = self.value.detach()
        # A mean may be the parameter itself, which further training changes.
        value = value.clone(memory_format=torch.contiguous_format) if self.noise is None else value.contiguous()
        return Gaussian(value, None).at_mean()

    def at(self, places: Tensor) -> Sample:
        """A sample of some of its weights alone, by their places in the flattened weight."""

        def pick(whole: Tensor) -> Tensor:
            return whole.flatten()[places]

        if self.fixed:
            return Gaussian(pick(self.value), None).at_mean()
        whole, noise = self.source, self.noise
        assert whole.std is not None
        source = Gaussian(pick(whole.mean), pick(whole.std), pick(log_std_of(whole)))
        return GaussianSample(pick(self.value), source, None if noise is None else pick(noise))

    def kl(self, prior: Prior) -> Tensor:
        """The estimate of the KL divergence from this sample, summed over its weights."""
        return prior.kl(self)

    def log_prob(self) -> Tensor:
        """log q(value), elementwise. It is computed from the noise, which avoids a difference of near-equal numbers."""
        log_std = log_std_of(self.source)
        return -log_std - LOG_SQRT_2PI if self.noise is None else -log_std - 0.5 * self.noise.square() - LOG_SQRT_2PI


@dataclass(eq=False)
class GaussianSample(Sample):
    """A sample made with plain operations."""

    value: Tensor
    source: Gaussian
    noise: Tensor | None


def gaussian_kl(q: Gaussian, mean: Tensor | float, std: Any, log_std: Tensor | float) -> Tensor:
    """KL(q || N(mean, std^2)) in closed form, summed; it depends on q, and not on a value drawn from it."""
    own = log_std_of(q)
    assert q.std is not None
    # Ratios first: the squares of two tiny deviations would be zero, while their ratio is not.
    squares = (q.std / std).square() + ((at_least_float32(q.mean) - mean) / std).square()
    return (log_std - own + 0.5 * squares - 0.5).sum()


def log_std_of(gaussian: Gaussian) -> Tensor:
    """The logarithm of the standard deviation; a fixed weight has none."""
    if gaussian.std is None:
        raise ArgumentError("a fixed weight (std=None) has no density; its KL is 0: leave it out of the sum.")
    return gaussian.std.log() if gaussian.log_std is None else gaussian.log_std

"""A sample whose layers sample their outputs: local reparameterisation."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from kernelseed.core.distributions import (
    Decoded,
    Gaussian,
    Prior,
    Sample,
    as_when_drawn,
    at_least_float32,
    softplus,
)
from kernelseed.core.noise import Noise
from kernelseed.core.rho_gaussian import RhoGaussian
from kernelseed.core.weights.base import WeightDistribution
from kernelseed.core.weights.fused_sample import exact_kl
from kernelseed.core.weights.together import decode_together, sample_together
from kernelseed.fast import LocalWeight, is_traced

OUTPUTS = 1
"""The part of a weight's noise that is for the first output of its layer; an ordinary sample has part 0.

An output for another input has the next part. By their number, and not by their order alone, since activation
checkpointing runs some of them a second time, and has to find the noise of the first.
"""


def sample_locally(weights: Iterable[WeightDistribution], noise: Noise) -> list[Sample]:
    """One sample of each weight; those of independent Gaussians sample the outputs of their layers.

    Others are drawn as ever: products of Gaussian factors, pruned weights, and what has a `sample` of its own. So are
    all of them in compiled code and under torch.func, which take plain tensors only.
    """
    weights = list(weights)
    if is_traced():
        return sample_together(weights, noise)
    stated = {i: w for i, w in enumerate(weights) if type(w).sample is WeightDistribution.sample}
    decoded = dict(zip(stated, decode_together(stated.values()), strict=True))
    owned = [noise.for_weight(index) for index in range(len(weights))]
    return [
        _local(decoded[i], own) if i in decoded else weight.sample(own)
        for i, (weight, own) in enumerate(zip(weights, owned, strict=True))
    ]


def _local(decoded: Decoded, noise: Noise) -> Sample:
    if isinstance(decoded, Gaussian | RhoGaussian) and not decoded.fixed:
        return LocalSample(decoded, noise)
    return decoded.sample(noise)


class LocalSample(Sample):
    """Gaussian weights that are not drawn. Layers draw their outputs; whoever reads `value` gets one ordinary sample.

    The KL from Gaussian priors is exact and needs no sample. Other priors estimate it from the ordinary one.
    """

    fixed = False

    def __init__(self, decoded: Gaussian | RhoGaussian, noise: Noise) -> None:
        self._decoded, self._noise = decoded, noise
        self._moments, self._draw = as_when_drawn(decoded.moments), as_when_drawn(lambda: decoded.sample(noise))

    @functools.cached_property
    def source(self) -> Gaussian:
        """Their Gaussian."""
        return self._moments()

    @functools.cached_property
    def _drawn(self) -> Sample:
        return self._draw()

    @property
    def value(self) -> Tensor:
        """The ordinary sample."""
        return self._drawn.value

    @property
    def noise(self) -> Tensor | None:
        """Of the ordinary sample."""
        return self._drawn.noise

    @property
    def operand(self) -> Tensor:
        """A tensor subclass whose layers sample their outputs. The same draw gives the same input the same output."""
        mean, std = _mean_and_std(self._decoded)
        calls: dict[Hashable, int] = {}

        def normal(x: Tensor, shape: torch.Size) -> Tensor:
            number = calls.setdefault(_mark(x), len(calls))
            return self._noise.for_part(OUTPUTS + number).normal(shape, std.dtype, std.device)

        return LocalWeight.of(mean, std.to(mean.dtype), normal, lambda: self.value)

    @property
    def num_weights(self) -> int:
        """All of its weights."""
        return self._decoded.shape.numel()

    def kl(self, prior: Prior) -> Tensor:
        """Exact from Gaussians; from one sample else."""
        decoded = self._decoded
        if isinstance(decoded, RhoGaussian) and decoded.rho.dtype == decoded.mean.dtype == torch.float32:
            exact = exact_kl(lambda: decoded, prior)
            return prior.kl(self) if exact is None else exact
        return prior.kl(self)


@torch.no_grad()
def _mark(x: Tensor) -> Hashable:
    """By what an input is known again: its shape, and a sum in which no two of its numbers count alike."""
    columns = max(1, x.shape[-1])
    rows = at_least_float32(x).reshape(x.numel() // columns, columns)
    across, down = (torch.arange(1, n + 1, device=x.device).to(rows).sin_() for n in reversed(rows.shape))
    with torch.autocast(x.device.type, enabled=False):
        return (*x.shape, (rows @ across).dot(down).item())


def _mean_and_std(decoded: Gaussian | RhoGaussian) -> tuple[Tensor, Tensor]:
    """Without the logarithm, which an output does not need."""
    if isinstance(decoded, RhoGaussian):
        mean, rho = decoded.in_shape()
        return mean, softplus(rho)
    assert decoded.std is not None
    return decoded.mean, decoded.std

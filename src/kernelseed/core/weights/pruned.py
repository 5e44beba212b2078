"""A pruned weight: another distribution, some of whose weights are exactly zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelseed.core.distributions import Decoded, Gaussian, Prior, Sample, log_std_of
from kernelseed.core.noise import Noise
from kernelseed.core.rho_gaussian import RhoGaussian
from kernelseed.core.weights.base import WeightDistribution
from kernelseed.core.weights.fixed_kernel_seed import FixedKernelSeed
from kernelseed.core.weights.gaussian_factors import GaussianFactors
from kernelseed.core.weights.kernel_seed import KernelSeed
from kernelseed.core.weights.mean_field import MeanField
from kernelseed.errors import ArgumentError, ArgumentTypeError


class Pruned(WeightDistribution):
    """The distribution `of`, with a zero in the mean and in every draw where `kept` is False.

    A pruned weight is no longer random: it has no KL, so that further training regularises only what is kept. The
    parameters of `of` stay whole, for a seed decodes pruned weights and others together.
    """

    kept: Tensor

    def __init__(self, of: WeightDistribution, kept: Tensor, num_kept: int | None = None) -> None:
        super().__init__()
        if isinstance(of, Pruned):
            raise ArgumentTypeError("of is Pruned already; give the distribution in it, of.of, and all zeros in kept.")
        if kept.dtype != torch.bool or kept.shape != of.shape:
            raise ArgumentError(
                f"kept is {kept.dtype} of shape {tuple(kept.shape)}; it must be bool, of the weight's shape "
                f"{tuple(of.shape)}."
            )
        self.of = of
        self.shape = of.shape
        self.rhos, self.seeds, self.germinators = (
            tuple(f"of.{name}" for name in names) for names in (of.rhos, of.seeds, of.germinators)
        )
        self.num_kept = int(kept.sum()) if num_kept is None else num_kept
        self.register_buffer("kept", kept)

    @classmethod
    def further(cls, weight: WeightDistribution, kept: Tensor) -> Pruned:
        """A weight with these zeros beside those that it may have already."""
        return cls(weight.of, weight.kept & kept) if isinstance(weight, Pruned) else cls(weight, kept)

    def moments(self) -> Gaussian:
        """Zero and zero for what is pruned."""
        return _zeroed(self.of.moments(), self.kept)

    def sample(self, noise: Noise) -> Sample:
        """A draw of the whole, as fast as it is, then the zeros."""
        # The KL asks a fused sample for its Gaussian, which torch.compile can't make later.
        whole = self.of.decoded().sample(noise) if torch.compiler.is_compiling() else self.of.sample(noise)
        return PrunedSample(whole, self.kept, self.num_kept)

    def mean(self) -> Sample:
        """The mean of the whole, then the zeros."""
        return PrunedSample(self.of.mean(), self.kept, self.num_kept)

    def decoded(self) -> Decoded:
        """Decoded once, zeroed in every draw."""
        return DecodedPruned(self.of.decoded(), self.kept, self.num_kept)

    @property
    def rank(self) -> int | None:  # type: ignore[override]
        """That of the seed, which pruning leaves as large as it was."""
        return self.of.rank

    def spec(self) -> dict[str, Any]:
        """What it is made of, and how many of its weights are left."""
        return {"of": {"distribution": type(self.of).__name__, **self.of.spec()}, "kept": self.num_kept}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> Pruned:
        """See `WeightDistribution.from_spec`; a distribution of your own is known to `kernelseed.load` alone."""
        inner = dict(spec["of"])
        kinds = {kind.__name__: kind for kind in (MeanField, KernelSeed, FixedKernelSeed, GaussianFactors)}
        return cls.blank(kinds[inner.pop("distribution")].from_spec(inner), spec["kept"])

    @classmethod
    def blank(cls, of: WeightDistribution, num_kept: int) -> Pruned:
        """One whose mask is not yet set."""
        return cls(of, torch.empty(of.shape, dtype=torch.bool), num_kept)


def _zeroed(whole: Gaussian, kept: Tensor) -> Gaussian:
    std = None if whole.std is None else whole.std * kept
    return Gaussian(whole.mean * kept, std, swapped=whole.swapped)


@dataclass(frozen=True, eq=False)
class DecodedPruned:
    """A decoded distribution, zeroed in every draw."""

    whole: Decoded
    kept: Tensor
    num_kept: int

    @property
    def fixed(self) -> bool:
        """Whether every draw is the mean."""
        return self.whole.fixed

    def sample(self, noise: Noise) -> Sample:
        """Draw once."""
        return PrunedSample(self.whole.sample(noise), self.kept, self.num_kept)

    def at_mean(self) -> Sample:
        """The mean, as a sample."""
        return PrunedSample(self.whole.at_mean(), self.kept, self.num_kept)

    def kl(self, sample: Sample) -> Tensor:
        """That of what the sample has kept; a weight that is zero here must be zero there, too."""
        if not isinstance(sample, PrunedSample) or (sample.kept & ~self.kept).any():
            raise ArgumentError(
                "the prior is pruned where the weight is not, so that the KL is infinite; prune both alike, or take "
                "the network from before as the prior."
            )
        return sample.kl(self.whole)


class PrunedSample(Sample):
    """A sample of the whole weight, with its zeros."""

    value: Tensor

    def __init__(self, whole: Sample, kept: Tensor, num_kept: int) -> None:
        self.whole, self.kept, self.num_kept = whole, kept, num_kept
        self.value = torch.where(kept, whole.value, 0)

    @property
    def source(self) -> Gaussian:
        """The Gaussian from which it was drawn, zero and zero for what is pruned."""
        return _zeroed(self.whole.source, self.kept)

    @property
    def noise(self) -> Tensor | None:
        """That of the whole."""
        return self.whole.noise

    @property
    def fixed(self) -> bool:
        """Whether even the kept weights have no distribution."""
        return self.whole.fixed

    @property
    def num_weights(self) -> int:
        """The random variables that are left."""
        return 0 if self.fixed else self._left().num_weights

    def kl(self, prior: Prior) -> Tensor:
        """That of what is left."""
        if isinstance(prior, DecodedPruned):
            return prior.kl(self)
        if isinstance(prior, Gaussian | RhoGaussian):  # one for each weight, of which some are left
            whole = prior.moments()
            log_std = log_std_of(whole)
            assert whole.std is not None
            places = self._places()
            mean, std, log_std = (tensor.flatten()[places] for tensor in (whole.mean, whole.std, log_std))
            prior = Gaussian(mean, std, log_std)
        return self._left().kl(prior)

    def _left(self) -> Sample:
        return self.whole.at(self._places())

    def _places(self) -> Tensor:
        """Of the kept weights; their number is given, so that torch.compile knows all shapes."""
        return torch.nonzero_static(self.kept.flatten(), size=self.num_kept)[:, 0]

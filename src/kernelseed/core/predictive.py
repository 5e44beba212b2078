"""What is predicted, and how far to trust it: the predictive distribution split into its two uncertainties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

P = TypeVar("P", bound="Classification | Regression")


def entropy(probs: Tensor, dim: int = 1) -> Tensor:
    """Shannon entropy in nats; 0 log 0 is 0."""
    return torch.special.entr(probs).sum(dim)


@dataclass(frozen=True, eq=False)
class Classification:
    """Class probabilities averaged over the draws. The class axis is 1, as in `F.cross_entropy`."""

    probs: Tensor
    expected_entropy: Tensor
    """The mean entropy of the single draws: aleatoric, what more data would not remove."""
    variance: Tensor
    """The variance of each class's probability among the draws, in the shape of `probs`."""

    @classmethod
    def from_draws(cls, probs: Tensor) -> Classification:
        """From the probabilities of each draw, (draws, N, classes, ...)."""
        mean = probs.mean(0)
        return cls(mean, entropy(probs, 2).mean(0), (probs - mean).square().mean(0))

    @property
    def label(self) -> Tensor:
        """The most probable class."""
        return self.probs.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The probability of that class."""
        return self.probs.amax(1)

    @property
    def entropy(self) -> Tensor:
        """The entropy of the averaged probabilities: all uncertainty, of either kind."""
        return entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """Entropy minus expected entropy: epistemic, how far the draws disagree. Never negative but by rounding."""
        return (self.entropy - self.expected_entropy).clamp_min(0)


@dataclass(frozen=True, eq=False)
class Regression:
    """A mean and the two parts of its variance."""

    mean: Tensor
    epistemic: Tensor
    """The variance of the mean among the draws: what more data would remove."""
    aleatoric: Tensor
    """The noise variance, averaged over the draws: what more data would not remove."""

    @property
    def variance(self) -> Tensor:
        """The whole predictive variance."""
        return self.epistemic + self.aleatoric

    @property
    def std(self) -> Tensor:
        """Its square root."""
        return self.variance.sqrt()


def concatenate(parts: Sequence[P]) -> P:
    """One prediction out of those for consecutive batches."""
    first = parts[0]
    return type(first)(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(first)))

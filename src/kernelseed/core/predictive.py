"""Predictive distributions, with their aleatoric and epistemic uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError

P = TypeVar("P", bound="Classification | Regression")


def entropy(probs: Tensor, dim: int = 1) -> Tensor:
    """Shannon entropy in nats; 0 log 0 is 0."""
    return torch.special.entr(probs).sum(dim)


@dataclass(frozen=True, eq=False)
class Classification:
    """Class probabilities averaged over the draws. The class axis is 1, as in `F.cross_entropy`."""

    probs: Tensor
    expected_entropy: Tensor
    """The mean entropy of the individual draws: the aleatoric part, which more data would not reduce."""
    variance: Tensor
    """The variance of the class probabilities over the draws, in the shape of `probs`."""
    votes: Tensor | None = None
    """The share of the draws whose most probable class it is, in the shape of `probs`; None in old files."""
    energy: Tensor | None = None
    """-log sum_k exp(logit_k), averaged over the draws; None where it was made of probabilities."""

    @classmethod
    def from_draws(cls, probs: Tensor) -> Classification:
        """From the probabilities of each draw, (draws, N, classes, ...)."""
        mean, top = probs.mean(0), probs.argmax(2).transpose(0, 1)
        votes = torch.zeros_like(mean).scatter_add(1, top, torch.ones_like(top, dtype=mean.dtype))
        return cls(mean, entropy(probs, 2).mean(0), (probs - mean).square().mean(0), votes / len(probs))

    @classmethod
    def from_logits(cls, logits: Tensor) -> Classification:
        """From the logits of each draw, (draws, N, classes, ...)."""
        # softmax and logsumexp would each go over them again, and are slow along a short last axis.
        largest = logits.amax(2, keepdim=True)
        shares = (logits - largest).exp()
        total = shares.sum(2, keepdim=True)
        energy = -(largest + total.log()).squeeze(2).mean(0)
        return replace(cls.from_draws(shares / total), energy=energy)

    @classmethod
    def from_parts(cls, parts: Mapping[str, Tensor]) -> Classification:
        """From its fields, of which the optional ones may be missing; a KeyError for another."""
        needed = {name: parts[name] for name in ("probs", "expected_entropy", "variance")}
        return cls(**needed, votes=parts.get("votes"), energy=parts.get("energy"))

    def merged(self, other: Classification, share: float) -> Classification:
        """The average over the draws of both, where `share` of all draws are the other's."""
        require_alike(self.probs, other.probs)
        optional = ((self.votes, other.votes), (self.energy, other.energy))
        return Classification(
            self.probs.lerp(other.probs, share),
            self.expected_entropy.lerp(other.expected_entropy, share),
            _merged_variance(self.variance, other.variance, other.probs - self.probs, share),
            *(None if a is None or b is None else a.lerp(b, share) for a, b in optional),
        )

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
        """The entropy of the averaged probabilities: the total uncertainty."""
        return entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """Entropy minus expected entropy: the epistemic part, the disagreement of the draws. Never negative."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    @property
    def variation_ratio(self) -> Tensor:
        """The share of the draws whose most probable class is not the one that most draws have. 0 for one draw."""
        if self.votes is None:
            raise ArgumentError("the prediction keeps no votes, as files of older versions do not; predict again.")
        return 1 - self.votes.amax(1)


@dataclass(frozen=True, eq=False)
class Regression:
    """The mean and the two parts of the variance."""

    mean: Tensor
    epistemic: Tensor
    """The variance of the mean over the draws, which more data would reduce."""
    aleatoric: Tensor
    """The noise variance, averaged over the draws, which more data would not reduce."""

    def merged(self, other: Regression, share: float) -> Regression:
        """The average over the draws of both, where `share` of all draws are the other's."""
        require_alike(self.mean, other.mean)
        return Regression(
            self.mean.lerp(other.mean, share),
            _merged_variance(self.epistemic, other.epistemic, other.mean - self.mean, share),
            self.aleatoric.lerp(other.aleatoric, share),
        )

    @property
    def variance(self) -> Tensor:
        """The total predictive variance."""
        return self.epistemic + self.aleatoric

    @property
    def std(self) -> Tensor:
        """Its square root."""
        return self.variance.sqrt()


def require_alike(one: Tensor, other: Tensor) -> None:
    """An error unless two networks say the same number of things about the same examples."""
    if one.shape != other.shape:
        raise ArgumentError(
            f"the networks' outputs have shapes {tuple(one.shape)} and {tuple(other.shape)}; only those of the same "
            "classes can be averaged: predict with each apart."
        )


def _merged_variance(one: Tensor, other: Tensor, between: Tensor, share: float) -> Tensor:
    """The variance within each of two sets of draws, and the one between their means (Chan et al., 1979)."""
    return one.lerp(other, share) + share * (1 - share) * between.square()


def concatenate(parts: Sequence[P]) -> P:
    """Join the predictions of consecutive batches into one."""
    first = parts[0]
    return type(first)(
        **{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(first) if _has(first, f.name)}
    )


def converted(prediction: P, like: torch.dtype | torch.device) -> P:
    """The same in another precision or on another device."""
    held = [f.name for f in fields(prediction) if _has(prediction, f.name)]
    return type(prediction)(**{name: getattr(prediction, name).to(like) for name in held})


def _has(prediction: Classification | Regression, name: str) -> bool:
    return getattr(prediction, name) is not None

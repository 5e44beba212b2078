"""Metrics of predicted probabilities: `probs` (N, K), averaged over draws, and `labels` (N,)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kernelseed.metrics.checks import check_bins, check_labels, check_probs


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """The share of examples whose most probable class (the first, on ties) is the label.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    p = check_probs(probs)
    return (p.argmax(1) == check_labels(labels, p)).double().mean().item()


def nll(probs: Tensor, labels: Tensor) -> float:
    """The mean of -log p(label), in nats.

    A probability below the smallest normal number of the dtype of probs counts as that number, because it is
    underflow: a label with probability 0 costs 87.3 nats in float32 or bfloat16, 708.4 in float64 and 9.7 in float16.

    >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([0])), 4)
    0.6931
    """
    p = check_probs(probs)
    y = check_labels(labels, p)
    p_y = p.gather(1, y[:, None]).clamp(min=torch.finfo(probs.dtype).tiny)
    return -p_y.log().mean().item()


def brier(probs: Tensor, labels: Tensor) -> float:
    """The squared distance to the one-hot label, summed over classes (so at most 2) and averaged over examples.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    p = check_probs(probs)
    y = check_labels(labels, p)
    return (p - one_hot(y, p.shape[1])).square().sum(1).mean().item()


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy in each bin; bin b holds edges[b] < confidence <= edges[b + 1]."""

    edges: Tensor  # (bins + 1,)
    count: Tensor  # (bins,) examples in the bin
    confidence: Tensor  # (bins,) their mean top probability; NaN where the bin is empty
    accuracy: Tensor  # (bins,) their share of correct predictions; NaN where the bin is empty

    @property
    def gap(self) -> Tensor:
        """|accuracy - confidence| of each bin; NaN where the bin is empty."""
        return (self.accuracy - self.confidence).abs()

    @property
    def ece(self) -> float:
        """The mean gap, weighted by the counts."""
        return ((self.count * self.gap).nansum() / self.count.sum()).item()

    @property
    def ace(self) -> float:
        """The unweighted mean gap of the bins that are not empty."""
        return self.gap.nanmean().item()

    @property
    def mce(self) -> float:
        """The largest gap."""
        return self.gap[self.count > 0].max().item()


def reliability(probs: Tensor, labels: Tensor, bins: int = 15, *, equal_mass: bool = False) -> Reliability:
    """Bin the examples by confidence (their top probability) into bins (lo, hi].

    The bins have equal width on [0, 1] or, with equal_mass, hold equally many examples as far as ties allow.
    Examples with equal confidence share a bin, so some bins may be empty.

    >>> r = reliability(torch.tensor([[0.9, 0.1], [0.7, 0.3]]), torch.tensor([0, 1]), bins=2)
    >>> r.count.tolist(), r.accuracy.tolist()
    ([0, 2], [nan, 0.5])
    """
    p = check_probs(probs)
    y = check_labels(labels, p)
    check_bins(bins)
    confidence, prediction = p.max(1)
    if equal_mass:
        # The i-th bin ends with the ceil(i N / bins)-th example.
        last = (torch.arange(1, bins + 1) * len(p) + bins - 1) // bins - 1
        edges = torch.cat([torch.zeros(1, dtype=p.dtype), confidence.sort().values[last]])
    else:
        # Rounded like the probabilities: 0.6 in float32 is above 0.6 in float64, but lies on that edge.
        edges = (torch.arange(bins + 1, dtype=p.dtype) / bins).to(probs.dtype).to(p.dtype)
    # Rounding may give a confidence above 1.
    index = (torch.bucketize(confidence, edges) - 1).clamp(max=bins - 1)
    count = torch.bincount(index, minlength=bins)

    def bin_mean(values: Tensor) -> Tensor:
        return torch.bincount(index, weights=values, minlength=bins) / count

    return Reliability(edges, count, bin_mean(confidence), bin_mean((prediction == y).to(p.dtype)))


def ece(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error: the count-weighted mean of |accuracy - confidence| over equal-width bins.

    >>> round(ece(torch.tensor([[0.9, 0.1], [0.7, 0.3]]), torch.tensor([0, 1])), 4)
    0.4
    """
    return reliability(probs, labels, bins).ece


def ace(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Average calibration error: the unweighted mean of the gap over the equal-width bins that are not empty.

    It is not the adaptive calibration error, which has the same abbreviation; for equal-mass bins see adaptive_ece.

    >>> round(ace(torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.7, 0.3]]), torch.tensor([0, 0, 1])), 4)
    0.4
    """
    return reliability(probs, labels, bins).ace


def mce(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Maximum calibration error: the largest gap of the equal-width bins.

    >>> round(mce(torch.tensor([[0.9, 0.1], [0.7, 0.3]]), torch.tensor([0, 1])), 4)
    0.7
    """
    return reliability(probs, labels, bins).mce


def adaptive_ece(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """The expected calibration error over bins that hold equally many examples.

    >>> round(adaptive_ece(torch.tensor([[0.9, 0.1], [0.7, 0.3]]), torch.tensor([0, 1]), bins=1), 4)
    0.3
    """
    return reliability(probs, labels, bins, equal_mass=True).ece


def summary(probs: Tensor, labels: Tensor, bins: int = 15) -> dict[str, float]:
    """All metrics of a classifier's probabilities, by name.

    >>> list(summary(torch.tensor([[0.9, 0.1]]), torch.tensor([0])))
    ['accuracy', 'nll', 'brier', 'ece', 'ace', 'mce', 'adaptive_ece']
    """
    r = reliability(probs, labels, bins)
    return {
        "accuracy": accuracy(probs, labels),
        "nll": nll(probs, labels),
        "brier": brier(probs, labels),
        "ece": r.ece,
        "ace": r.ace,
        "mce": r.mce,
        "adaptive_ece": adaptive_ece(probs, labels, bins),
    }

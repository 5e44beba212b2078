"""Which of two rows is better: a paired comparison over the test images, and the spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernelseed.metrics import METRICS, reliability

TEST_IMAGES = 10_000
"""The size of the test set, the same in all four data sets."""


@dataclass(frozen=True)
class Evidence:
    """What a result keeps of each test image: whether it was classified correctly, and the log-probabilities if any."""

    correct: np.ndarray
    log_probs: np.ndarray | None = None
    labels: np.ndarray | None = None

    @classmethod
    def from_log_probs(cls, log_probs: np.ndarray, labels: np.ndarray) -> Evidence:
        """From the arrays of a result file."""
        return cls(log_probs.argmax(1) == labels, log_probs, labels)

    def has(self, key: str) -> bool:
        """Whether it is enough to compute a metric."""
        return key == "accuracy" or (key in ("nll", "ece", "ace") and self.log_probs is not None)

    def parts(self, key: str) -> np.ndarray:
        """What each image contributes to a metric, whose value is their mean.

        A calibration error is a mean of signed gaps between confidence and correctness, each with the sign and the
        weight of its bin. For the standard error these are taken as given.
        """
        if key == "accuracy":
            return self.correct.astype(np.float64)
        assert self.log_probs is not None
        assert self.labels is not None
        # They are rounded; softmax makes them sum to 1 again.
        probs = torch.from_numpy(self.log_probs.astype(np.float64)).softmax(1)
        labels = torch.from_numpy(self.labels.astype(np.int64))
        if key == "nll":
            chosen = probs.gather(1, labels[:, None])[:, 0]
            return -chosen.clamp_min(torch.finfo(torch.float64).tiny).log().numpy()
        bins = reliability(probs, labels)
        confidence = probs.max(1).values
        index = (torch.bucketize(confidence, bins.edges) - 1).clamp(max=len(bins.count) - 1)
        gap = torch.sign(bins.confidence - bins.accuracy)
        filled = bins.count > 0
        weight = gap if key == "ece" else gap * len(probs) / (filled.sum() * bins.count)
        return (weight[index] * (confidence - torch.from_numpy(self.correct).double())).numpy()


def compare(key: str, first: Sequence[Evidence], second: Sequence[Evidence]) -> int | None:
    """1 if the first of two rows is better in a metric, -1 if the second is, 0 if the difference may be chance.

    Both have one piece of evidence per seed, about the same images. The mean difference must exceed two standard
    errors, which come from the images (paired: what both rows have in common does not count) and, if there are several
    seeds, from the spread of the difference over seeds. Seeds whose results don't keep what the metric needs are left
    out; None if no seed is left.
    """
    pairs = [pair for pair in zip(first, second, strict=False) if all(each.has(key) for each in pair)]
    if not pairs:
        return None
    differences = np.stack([one.parts(key) - other.parts(key) for one, other in pairs])
    by_seed = differences.mean(1)
    of_images = differences.mean(0).std() / math.sqrt(differences.shape[1])
    of_seeds = by_seed.std(ddof=1) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0.0
    return sign(METRICS[key].gain(by_seed.mean(), 0.0), 2 * math.hypot(of_images, of_seeds))


def sign(difference: float, within: float) -> int:
    """The sign of a difference, 0 if it is small."""
    return 0 if abs(difference) <= within else 1 if difference > 0 else -1

"""Which of two rows is better: a paired comparison over the test images, and the spread over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernelseed.metrics import METRICS, reliability

TEST_IMAGES = 10_000
"""The size of the test set, the same in all four data sets."""
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""How many standard errors a mean over 2, 3, ... seeds may be off in one case of twenty: Student's t."""


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


@dataclass(frozen=True)
class Trained:
    """What came of one training of a row."""

    metrics: Mapping[str, float]
    evidence: Evidence | None
    """None if its result keeps nothing of each image."""

    def has(self, key: str) -> bool:
        """Whether a metric can be compared image by image."""
        return self.evidence is not None and self.evidence.has(key)


@dataclass(frozen=True)
class Comparison:
    """Which of two rows is better, and what that stands on."""

    better: int
    """1 if the first is, -1 if the second is, 0 if the difference may be chance."""
    values: tuple[float, float]
    """The metric of each row, averaged over the seeds that were compared."""
    seeds: int


def compare(key: str, first: Mapping[int, Trained], second: Mapping[int, Trained]) -> Comparison | None:
    """Compare two rows in a metric by the seeds that both have; None if there are none.

    The mean difference must exceed twice its standard error, which comes from the test images (paired: what both rows
    have in common does not count). Where there are several seeds, the spread of the difference over them, times
    Student's t, is added to it in squares. One seed speaks of these two networks, and not of others trained alike.
    Seeds whose results don't keep what this needs are left out; where no other is there, see `better`.
    """
    pairs = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    if not pairs:
        return None
    tested = [pair for pair in pairs if all(each.has(key) for each in pair)]
    pairs = tested or pairs
    one, other = (statistics.fmean(each[row].metrics[key] for each in pairs) for row in (0, 1))
    word = _tested(key, [(a.evidence, b.evidence) for a, b in tested]) if tested else better(key, one, other)
    return Comparison(word, (one, other), len(pairs))


def _tested(key: str, pairs: list[Any]) -> int:
    differences = np.stack([one.parts(key) - other.parts(key) for one, other in pairs])
    by_seed, count = differences.mean(1), len(pairs)
    within = 2 * differences.mean(0).std() / math.sqrt(differences.shape[1])
    if count > 1:
        student = STUDENT[count - 2] if count - 2 < len(STUDENT) else 2.0
        within = math.hypot(within, student * by_seed.std(ddof=1) / math.sqrt(count))
    return sign(METRICS[key].gain(by_seed.mean(), 0.0), within)


def better(key: str, first: float, second: float) -> int:
    """1 if the first value of a metric is better, -1 if it is worse, 0 if the difference is too small.

    Accuracies must differ by two standard errors, computed as for independent test sets. Other metrics must differ by
    a fifth of the larger value, which is a rule of thumb and not a test.
    """
    gain = METRICS[key].gain(first, second)
    if key == "accuracy":
        return sign(gain, 2 * math.sqrt((first * (1 - first) + second * (1 - second)) / TEST_IMAGES))
    return sign(gain, 0.2 * max(first, second))


def sign(difference: float, within: float) -> int:
    """The sign of a difference, 0 if it is small."""
    return 0 if abs(difference) <= within else 1 if difference > 0 else -1

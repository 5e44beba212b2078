"""Abstention: a confidence threshold chosen on validation data, with a bound on the error rate of new answers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelseed.core import Classification, check_kind, check_share
from kernelseed.errors import ArgumentError
from kernelseed.metrics import check_labels, check_probs

CANDIDATES = 20
WANTED = "a threshold is for classes, so give what ks.predict returns for them"


@dataclass(frozen=True)
class Abstention:
    """Answer if the confidence is above `threshold`: with the given confidence, at most `risk` of answers are wrong."""

    threshold: float
    """0 answers everything; infinity nothing, because no candidate showed the risk."""
    risk: float
    confidence: float
    answered: int
    """How many of the validation examples are answered."""
    errors: int
    """How many of these answers are wrong."""
    bound: float
    """The upper bound of the error rate of new answers; 0 if there are none."""
    examples: int

    @property
    def coverage(self) -> float:
        """The share of the validation examples that is answered."""
        return self.answered / self.examples

    def abstains(self, prediction: Classification) -> Tensor:
        """For each example, whether not to answer."""
        check_kind("prediction", prediction, Classification, WANTED)
        return ~(prediction.confidence > self.threshold)


def abstention(prediction: Classification, labels: Tensor, risk: float = 0.01, confidence: float = 0.95) -> Abstention:
    """The threshold that answers most, among those whose error rate on new data is shown to be at most `risk`.

    prediction, labels   of validation data: not trained on, and like the data to come
    risk                 the largest share of wrong answers among the answers
    confidence           the probability, over validation sets, that the threshold keeps to the risk

    There are 20 candidates: the thresholds that the m most confident examples exceed, for 20 numbers m that are
    chosen before any label is seen. Given the threshold, the m examples are independent draws from what it answers,
    so the number of errors is binomial, and Clopper and Pearson's bound is exact. Each candidate is tested at
    (1 - confidence) / 20, so that all bounds hold at once and any candidate may be chosen. Nothing is assumed of the
    model: a poor confidence costs coverage, not validity.

    >>> import kernelseed as ks
    >>> probs = torch.tensor([[0.9, 0.1]] * 500 + [[0.6, 0.4]] * 500)
    >>> labels = torch.tensor([0] * 500 + [0, 1] * 250)
    >>> p = ks.Classification.from_draws(probs[None])
    >>> found = abstention(p, labels, risk=0.02)
    >>> round(found.threshold, 2), found.answered, found.errors, round(found.bound, 4)
    (0.6, 500, 0, 0.0119)
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        check_share(name, value, "write 5 % as 0.05")
    check_kind("prediction", prediction, Classification, WANTED)
    probs = check_probs(prediction.probs)
    wrong = probs.argmax(1) != check_labels(labels, probs)
    level = (1 - confidence) / CANDIDATES
    least = math.ceil(math.log(level) / math.log1p(-risk))
    if len(probs) < least:
        raise ArgumentError(
            f"risk is {risk} with {len(probs)} validation examples; even without an error it takes {least} to show it "
            f"with confidence {confidence}: use more examples, a higher risk or a lower confidence."
        )
    ranked, order = probs.amax(1).sort(descending=True)
    errors = wrong[order].cumsum(0)
    counts = torch.linspace(least, len(probs), CANDIDATES, dtype=torch.float64).round().long().unique()
    for count in counts.flip(0).tolist():
        threshold = ranked[count].item() if count < len(ranked) else 0.0
        answered = int((ranked > threshold).sum())  # fewer than the count where confidences tie
        found = int(errors[answered - 1]) if answered else 0
        if answered and _at_most(found, answered, risk) <= level:
            bound = upper_bound(found, answered, level)
            return Abstention(threshold, risk, confidence, answered, found, bound, len(probs))
    return Abstention(math.inf, risk, confidence, 0, 0, 0.0, len(probs))


def upper_bound(errors: int, trials: int, level: float) -> float:
    """Clopper and Pearson's: the largest error rate with which so few errors have a probability of at least `level`.

    >>> round(upper_bound(0, 299, 0.05), 4)
    0.01
    """
    if errors >= trials:
        return 1.0
    low, high = errors / trials, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(errors, trials, middle) >= level else (low, middle)
    return high


def _at_most(errors: int, trials: int, rate: float) -> float:
    """The probability of at most so many errors: the regularised incomplete beta function, as a sum."""
    log_odds = math.log(rate) - math.log1p(-rate)
    log_prob = trials * math.log1p(-rate)  # of no error
    total = math.exp(log_prob)
    for k in range(errors):
        log_prob += math.log((trials - k) / (k + 1)) + log_odds
        total += math.exp(log_prob)
    return total

"""Metrics of a score that ranks examples: which to answer, and which are out of distribution.

Only the order of the scores counts. Ties are treated together, so the order of the examples does not matter.
"""

import math

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError
from kernelseed.metrics.checks import check_correct, check_scores


def risk_coverage(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """The share of examples that are answered, and the error rate among them, for a falling confidence threshold.

    There is one point per distinct confidence, the highest first: ties are answered together. For an uncertainty, such
    as the entropy, pass its negative.

    >>> correct = torch.tensor([True, True, False, False])
    >>> coverage, risk = risk_coverage(torch.tensor([0.9, 0.8, 0.8, 0.6]), correct)
    >>> coverage.tolist(), [round(r, 2) for r in risk.tolist()]
    ([0.25, 0.75, 1.0], [0.0, 0.33, 0.5])
    """
    _, coverage, risk = _selective(confidence, correct)
    return coverage, risk


def aurc(confidence: Tensor, correct: Tensor) -> float:
    """The area under the risk-coverage curve: the mean over n of the error rate of the n most confident answers.

    Ties come in random order; it is the mean over these orders.

    >>> round(aurc(torch.tensor([0.9, 0.6]), torch.tensor([True, False])), 4)
    0.25
    """
    _, coverage, risk = _selective(confidence, correct)
    start, count = coverage.new_zeros(1), len(correct)
    answered, errors = torch.cat([start, coverage * count]), torch.cat([start, risk * coverage * count])
    n = torch.arange(1, count + 1, dtype=torch.float64, device=coverage.device)
    after = torch.searchsorted(answered.round(), n)  # among ties, errors rise in a line
    share = (n - answered[after - 1]) / (answered[after] - answered[after - 1])
    return (errors[after - 1].lerp(errors[after], share) / n).mean().item()


def eaurc(confidence: Tensor, correct: Tensor) -> float:
    """The excess of `aurc` over the best order, in which every correct answer comes before every wrong one.

    It is 0, up to rounding, for a confidence that tells right from wrong, whatever the error rate.

    >>> eaurc(torch.tensor([0.9, 0.6]), torch.tensor([True, False]))
    0.0
    """
    right = check_correct(correct, check_scores(confidence, "confidence"))
    best = aurc(-torch.arange(len(right), dtype=torch.float64), right.sort(descending=True).values)
    return aurc(confidence, correct) - best


def augrc(confidence: Tensor, correct: Tensor) -> float:
    """The area under the generalised risk-coverage curve: the share of examples that are answered and wrong.

    It is the mean over all coverages of the risk times the coverage, so a silent failure counts the same wherever it
    is (Traub et al., 2024). Between thresholds the curve is linear, as if ties were broken at random.

    >>> augrc(torch.tensor([0.9, 0.6]), torch.tensor([True, False]))
    0.125
    """
    coverage, risk = risk_coverage(confidence, correct)
    start = coverage.new_zeros(1)
    return torch.trapezoid(torch.cat([start, coverage * risk]), torch.cat([start, coverage])).item()


def threshold_at_risk(confidence: Tensor, correct: Tensor, risk: float) -> float:
    """The lowest confidence t for which the examples with confidence >= t have an error rate of at most risk.

    Use it as `abstain = confidence < t`. It is math.inf, which always abstains, if no threshold attains the risk. It
    holds for the given examples only: use a validation set, and expect new data to differ by chance.

    >>> threshold_at_risk(torch.tensor([0.75, 0.5, 0.25]), torch.tensor([True, True, False]), risk=0.1)
    0.5
    """
    if not 0 <= risk <= 1:
        raise ArgumentError(f"risk is {risk}; it is an error rate and lies in [0, 1]: write 5 % as 0.05.")
    threshold, _, risks = _selective(confidence, correct)
    attained = threshold[risks <= risk]
    return attained[-1].item() if len(attained) else math.inf


def auroc(in_scores: Tensor, out_scores: Tensor) -> float:
    """The probability that an out-of-distribution input scores above an in-distribution one; a tie counts 1/2.

    A higher score means "out", as for the entropy `torch.special.entr(probs).sum(-1)`; negate a confidence.

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))
    0.875
    """
    inside = check_scores(in_scores, "in_scores").sort().values
    out = check_scores(out_scores, "out_scores")
    below, up_to = torch.searchsorted(inside, out), torch.searchsorted(inside, out, right=True)
    return (below + up_to).sum().item() / (2 * len(inside) * len(out))


def aupr(in_scores: Tensor, out_scores: Tensor) -> float:
    """The average precision with "out" as the positive class: the area under the precision-recall curve, in steps.

    A higher score means "out", as in auroc. By chance it is the share of "out" among all. With "in" as the positive
    class it is aupr(-out_scores, -in_scores).

    >>> round(aupr(torch.tensor([0.1, 0.5]), torch.tensor([0.4, 0.9])), 4)
    0.8333
    """
    inside, out = check_scores(in_scores, "in_scores"), check_scores(out_scores, "out_scores")
    is_out = torch.cat([torch.zeros_like(inside), torch.ones_like(out)])
    _, group = torch.cat([inside, out]).unique(return_inverse=True)
    flagged = torch.bincount(group).flip(0).cumsum(0)
    right = torch.bincount(group, weights=is_out).flip(0)
    return (right * right.cumsum(0) / flagged).sum().item() / len(out)


def detection(in_scores: Tensor, out_scores: Tensor) -> dict[str, float]:
    """How well a score tells out-of-distribution inputs from others, by each measure.

    >>> detection(torch.tensor([0.1, 0.2]), torch.tensor([0.4, 0.9]))
    {'auroc': 1.0, 'aupr': 1.0, 'fpr_at_95_tpr': 0.0}
    """
    return {measure.__name__: measure(in_scores, out_scores) for measure in (auroc, aupr, fpr_at_95_tpr)}


def fpr_at_95_tpr(in_scores: Tensor, out_scores: Tensor) -> float:
    """The share of in-distribution inputs above the threshold that flags at least 95 % of the out-of-distribution ones.

    "Out" is the positive class and scores higher, as in auroc. Some papers take "in" as the positive class:
    that is fpr_at_95_tpr(-out_scores, -in_scores).

    >>> fpr_at_95_tpr(torch.tensor([0.1, 0.5]), torch.tensor([0.4, 0.9]))
    0.5
    """
    inside, out = check_scores(in_scores, "in_scores"), check_scores(out_scores, "out_scores")
    flagged = -(-95 * len(out) // 100)  # the ceiling, in integers: 0.95 * n may round up
    threshold = out.sort(descending=True).values[flagged - 1]
    return (inside >= threshold).double().mean().item()


def _selective(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(threshold, coverage, risk) at each distinct confidence, the highest first."""
    c = check_scores(confidence, "confidence")
    wrong = ~check_correct(correct, c)
    threshold, group = c.unique(return_inverse=True)
    answered = torch.bincount(group).flip(0).cumsum(0)
    errors = torch.bincount(group, weights=wrong.double()).flip(0).cumsum(0)
    return threshold.flip(0), answered.double() / len(c), errors / answered

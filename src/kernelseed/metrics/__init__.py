"""Metrics of predicted probabilities: accuracy, calibration, abstention and out-of-distribution detection.

    summary(probs, labels)                      accuracy, nll, brier, ece, ace, mce, adaptive_ece
    reliability(probs, labels)                  the bins behind the calibration errors, for diagrams
    risk_coverage, aurc, eaurc, augrc           the error rate when a model abstains from uncertain answers
    threshold_at_risk                           a confidence to abstain below; `ks.abstention` is the one with a bound
    auroc, fpr_at_95_tpr                        the detection of out-of-distribution inputs
    METRICS                                     names and formats of metrics in tables, and which direction is better
    TemperatureScaling                          calibration by one number

Everything is computed in float64 on the CPU from the given probabilities, which are never renormalised, and does not
depend on the order of the examples.
"""

from kernelseed.metrics.calibration import TemperatureScaling
from kernelseed.metrics.checks import check_labels, check_probs
from kernelseed.metrics.probabilities import (
    Reliability,
    accuracy,
    ace,
    adaptive_ece,
    brier,
    ece,
    mce,
    nll,
    reliability,
    summary,
)
from kernelseed.metrics.ranking import augrc, aurc, auroc, eaurc, fpr_at_95_tpr, risk_coverage, threshold_at_risk
from kernelseed.metrics.table import METRICS, Metric

__all__ = [
    "METRICS",
    "Metric",
    "Reliability",
    "TemperatureScaling",
    "accuracy",
    "ace",
    "adaptive_ece",
    "augrc",
    "aurc",
    "auroc",
    "brier",
    "check_labels",
    "check_probs",
    "eaurc",
    "ece",
    "fpr_at_95_tpr",
    "mce",
    "nll",
    "reliability",
    "risk_coverage",
    "summary",
    "threshold_at_risk",
]

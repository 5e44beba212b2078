"""How good, and how honest, are predicted probabilities?

    summary(probs, labels)                      accuracy, nll, brier, ece, ace, mce, adaptive_ece
    reliability(probs, labels)                  the bins behind the calibration errors, for diagrams
    risk_coverage, aurc, threshold_at_risk      what abstaining buys
    auroc, fpr_at_95_tpr                        telling out-of-distribution inputs apart
    METRICS                                     how tables call them, and which end of each is better
    TemperatureScaling                          making a predictor as sure as it is right

Everything is computed in float64 on the CPU, from the probabilities as they are given (never renormalised),
and does not depend on the order of the examples.
"""

from kernelseed.metrics.calibration import TemperatureScaling
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
from kernelseed.metrics.ranking import aurc, auroc, fpr_at_95_tpr, risk_coverage, threshold_at_risk
from kernelseed.metrics.table import METRICS, Metric

__all__ = [
    "METRICS",
    "Metric",
    "Reliability",
    "TemperatureScaling",
    "accuracy",
    "ace",
    "adaptive_ece",
    "aurc",
    "auroc",
    "brier",
    "ece",
    "fpr_at_95_tpr",
    "mce",
    "nll",
    "reliability",
    "risk_coverage",
    "summary",
    "threshold_at_risk",
]

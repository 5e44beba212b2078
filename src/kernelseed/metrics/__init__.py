"""Metrics of predicted probabilities and numbers: calibration, abstention and out-of-distribution detection.

    summary(probs, labels)                      accuracy, nll, brier, ece, ace, mce, adaptive_ece
    regression_summary(mean, std, targets)      rmse, mae, nll, crps, coverage of central intervals
    reliability(probs, labels)                  the bins behind the calibration errors, for diagrams
    risk_coverage, aurc, eaurc, augrc           the error rate when a model abstains from uncertain answers
    threshold_at_risk                           a confidence to abstain below; `ks.abstention` is the one with a bound
    auroc, aupr, fpr_at_95_tpr, detection       the detection of out-of-distribution inputs
    METRICS, REGRESSION_METRICS, metrics_of     names and formats of metrics in tables, and which direction is better
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
from kernelseed.metrics.ranking import (
    augrc,
    aupr,
    aurc,
    auroc,
    detection,
    eaurc,
    fpr_at_95_tpr,
    risk_coverage,
    threshold_at_risk,
)
from kernelseed.metrics.regression import (
    LEVELS,
    crps,
    gaussian_nll,
    interval_coverage,
    nll_of_each,
    regression_summary,
    rmse,
)
from kernelseed.metrics.table import METRICS, REGRESSION_METRICS, Metric, metrics_of

__all__ = [
    "LEVELS",
    "METRICS",
    "REGRESSION_METRICS",
    "Metric",
    "Reliability",
    "TemperatureScaling",
    "accuracy",
    "ace",
    "adaptive_ece",
    "augrc",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "check_labels",
    "check_probs",
    "crps",
    "detection",
    "eaurc",
    "ece",
    "fpr_at_95_tpr",
    "gaussian_nll",
    "interval_coverage",
    "mce",
    "metrics_of",
    "nll",
    "nll_of_each",
    "regression_summary",
    "reliability",
    "risk_coverage",
    "rmse",
    "summary",
    "threshold_at_risk",
]

"""kernelseed: Bayesian deep learning that is smaller than the network it replaces.

The core, imported here, needs torch alone. Data sets, training and reports are subpackages that are loaded when
they are first asked for (`ks.data`, `ks.methods`, ...).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from kernelseed import errors, metrics, models
from kernelseed.core import (
    ELBO,
    BayesianModule,
    Classification,
    Draw,
    FixedKernelSeed,
    Gaussian,
    GaussianFactors,
    KernelSeed,
    MeanField,
    Noise,
    Posterior,
    Pruned,
    Regression,
    Sample,
    ScaleMixture,
    Terms,
    WeightDistribution,
    bayesianize,
    collapse,
    convert,
    factorise,
    fold_bn,
    germinate,
    likelihoods,
    load,
    outlier_scores,
    predict,
    priors,
    prune,
    save,
    schedules,
    shrink,
)
from kernelseed.decisions import abstention, conformal
from kernelseed.errors import KernelseedError
from kernelseed.metrics import calibration

if TYPE_CHECKING:  # at run time they are loaded when they are first asked for
    from kernelseed import continual as continual
    from kernelseed import data as data
    from kernelseed import hub as hub
    from kernelseed import methods as methods
    from kernelseed import optim as optim
    from kernelseed import report as report
    from kernelseed import reproduction as reproduction
    from kernelseed import testing as testing
    from kernelseed import training as training

__version__ = "0.1.0"

__all__ = [
    "ELBO",
    "BayesianModule",
    "Classification",
    "Draw",
    "FixedKernelSeed",
    "Gaussian",
    "GaussianFactors",
    "KernelSeed",
    "KernelseedError",
    "MeanField",
    "Noise",
    "Posterior",
    "Pruned",
    "Regression",
    "Sample",
    "ScaleMixture",
    "Terms",
    "WeightDistribution",
    "abstention",
    "bayesianize",
    "calibration",
    "collapse",
    "conformal",
    "convert",
    "errors",
    "factorise",
    "fold_bn",
    "germinate",
    "likelihoods",
    "load",
    "metrics",
    "models",
    "outlier_scores",
    "predict",
    "priors",
    "prune",
    "save",
    "schedules",
    "shrink",
]

_LOADED_LATE = ("continual", "data", "hub", "methods", "optim", "report", "reproduction", "testing", "training")
"""They need more than torch, or take long to import."""


def __getattr__(name: str) -> ModuleType:
    if name not in _LOADED_LATE:
        raise AttributeError(f"module 'kernelseed' has no attribute {name!r}")
    try:
        return importlib.import_module(f"kernelseed.{name}")
    except ModuleNotFoundError as error:
        raise errors.MissingPackageError(
            f'kernelseed.{name} needs the package {error.name!r}: pip install "kernelseed[all]".', name=error.name
        ) from None


def __dir__() -> list[str]:
    return sorted((*__all__, *_LOADED_LATE, "__version__"))

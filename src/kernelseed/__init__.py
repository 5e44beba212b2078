"""kernelseed: Bayesian deep learning that is smaller than the network it replaces.

The core, imported here, needs torch alone. Data sets, training and reports are rooms of their own, loaded when
they are first asked for (`ks.data`, `ks.methods`, ...).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from kernelseed import metrics, models
from kernelseed.core import likelihoods, priors, schedules
from kernelseed.core.conversion import bayesianize, germinate
from kernelseed.core.distributions import Gaussian, Sample
from kernelseed.core.export import collapse
from kernelseed.core.factorisation import factorise
from kernelseed.core.network import BayesianModule, Draw, Posterior
from kernelseed.core.objective import ELBO, Terms
from kernelseed.core.prediction import predict
from kernelseed.core.predictive import Classification, Regression
from kernelseed.core.priors import ScaleMixture
from kernelseed.core.weights import FixedKernelSeed, KernelSeed, MeanField, WeightDistribution

__version__ = "0.1.0"

__all__ = [
    "ELBO",
    "BayesianModule",
    "Classification",
    "Draw",
    "FixedKernelSeed",
    "Gaussian",
    "KernelSeed",
    "MeanField",
    "Posterior",
    "Regression",
    "Sample",
    "ScaleMixture",
    "Terms",
    "WeightDistribution",
    "bayesianize",
    "collapse",
    "factorise",
    "germinate",
    "likelihoods",
    "metrics",
    "models",
    "predict",
    "priors",
    "schedules",
]

# Loaded when they are first asked for, because they need more than torch.
_LAZY_MODULES = {
    "calibration": "kernelseed.metrics.calibration",
    "data": "kernelseed.data",
    "hub": "kernelseed.hub",
    "methods": "kernelseed.methods",
    "optim": "kernelseed.optim",
    "report": "kernelseed.report",
    "reproduction": "kernelseed.reproduction",
    "training": "kernelseed.training",
}
_LAZY_FUNCTIONS = {"save": "kernelseed.core.storage", "load": "kernelseed.core.storage"}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return _module(name, _LAZY_MODULES[name])
    if name in _LAZY_FUNCTIONS:
        return getattr(_module(name, _LAZY_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'kernelseed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES, *_LAZY_FUNCTIONS})


def _module(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'kernelseed.{name} needs the package {error.name!r}: pip install "kernelseed[all]"', name=error.name
        ) from None

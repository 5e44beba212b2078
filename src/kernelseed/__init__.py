"""kernelseed: Bayesian deep learning that is smaller than the network it replaces.

The core, imported here, needs torch alone. Data sets, training and reports are rooms of their own, loaded when
they are first asked for (`ks.data`, `ks.methods`, ...).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from kernelseed import errors, metrics, models
from kernelseed.core import (
    ELBO,
    BayesianModule,
    Classification,
    Draw,
    FixedKernelSeed,
    Gaussian,
    KernelSeed,
    MeanField,
    Noise,
    Posterior,
    Regression,
    Sample,
    ScaleMixture,
    Terms,
    WeightDistribution,
    bayesianize,
    collapse,
    convert,
    factorise,
    germinate,
    likelihoods,
    load,
    predict,
    priors,
    save,
    schedules,
)
from kernelseed.errors import KernelseedError

__version__ = "0.1.0"

__all__ = [
    "ELBO",
    "BayesianModule",
    "Classification",
    "Draw",
    "FixedKernelSeed",
    "Gaussian",
    "KernelSeed",
    "KernelseedError",
    "MeanField",
    "Noise",
    "Posterior",
    "Regression",
    "Sample",
    "ScaleMixture",
    "Terms",
    "WeightDistribution",
    "bayesianize",
    "collapse",
    "convert",
    "errors",
    "factorise",
    "germinate",
    "likelihoods",
    "load",
    "metrics",
    "models",
    "predict",
    "priors",
    "save",
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
    "testing": "kernelseed.testing",
    "training": "kernelseed.training",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return _module(name, _LAZY_MODULES[name])
    raise AttributeError(f"module 'kernelseed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES})


def _module(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'kernelseed.{name} needs the package {error.name!r}: pip install "kernelseed[all]"', name=error.name
        ) from None

"""kernelseed: Bayesian deep learning that is smaller than the network it replaces.

The core, imported here, needs torch alone. Data sets, training and reports are rooms of their own, loaded when
they are first asked for (`ks.data`, `ks.methods`, ...).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from kernelseed import likelihoods, metrics, models, priors, schedules
from kernelseed.conversion import bayesianize, germinate
from kernelseed.distributions import Gaussian, Sample
from kernelseed.export import collapse
from kernelseed.factorise import factorise
from kernelseed.network import BayesianModule, Draw, Posterior
from kernelseed.objective import ELBO, Terms
from kernelseed.predict import predict
from kernelseed.predictions import Classification, Regression
from kernelseed.priors import ScaleMixture
from kernelseed.weights import FixedKernelSeed, KernelSeed, MeanField, WeightDistribution

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

_OUTER_ROOMS = {"calibration", "data", "hub", "methods", "optim", "report", "reproduction", "training"}
_FROM_OUTER_ROOMS = {"save": "storage", "load": "storage"}


def __getattr__(name: str) -> Any:
    if name in _OUTER_ROOMS:
        return _room(name)
    if name in _FROM_OUTER_ROOMS:
        return getattr(_room(_FROM_OUTER_ROOMS[name]), name)
    raise AttributeError(f"module 'kernelseed' has no attribute {name!r}")


def _room(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"kernelseed.{name}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'kernelseed.{name} needs the package {error.name!r}: pip install "kernelseed[all]"', name=error.name
        ) from None

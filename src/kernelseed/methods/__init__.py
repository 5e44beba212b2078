"""Every system of the paper, and what a user would pick instead, behind one interface: see `Method`."""

from __future__ import annotations

from typing import Any

from kernelseed.errors import ArgumentError
from kernelseed.methods.method import Engine, GradientMethod, Method
from kernelseed.methods.natural import IVON, VOGN, Vadam
from kernelseed.methods.point import Baseline, Dropout, Ensemble
from kernelseed.methods.settings import Setting, check_settings, did_you_mean, setting, settings_of
from kernelseed.methods.variational import BNN, FKSN, KSN, LastLayerKSN

METHODS: dict[str, type[Method]] = {
    "baseline": Baseline,
    "dropout": Dropout,
    "bnn": BNN,
    "fksn": FKSN,
    "ksn": KSN,
    "ksn-last": LastLayerKSN,
    "vadam": Vadam,
    "vogn": VOGN,
    "ivon": IVON,
    "ensemble": Ensemble,
}


def make(name: str, /, **options: Any) -> Method:
    """A method by name. Options that are None keep the method's default.

    >>> make("ksn", delta=0.5).label(ensemble=True)
    'KSN-E channels δ=0.5'
    """
    allowed = options_of(name)
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in allowed:
            own = METHODS[name].is_optimizer and key in settings_of(GradientMethod)
            why = ", which is an optimizer itself" if own else ""
            raise ArgumentError(
                f"{key} is no option of method {name!r}{why}; allowed: {', '.join(allowed)}."
                f"{did_you_mean(key, allowed)}"
            )
    return METHODS[name](**given)


def options_of(name: str) -> dict[str, Setting]:
    """The hyperparameters of a method."""
    if name not in METHODS:
        raise ArgumentError(f"method is {name!r}; allowed: {', '.join(METHODS)}.{did_you_mean(name, METHODS)}")
    return settings_of(METHODS[name])


__all__ = [
    "BNN",
    "FKSN",
    "IVON",
    "KSN",
    "METHODS",
    "VOGN",
    "Baseline",
    "Dropout",
    "Engine",
    "Ensemble",
    "GradientMethod",
    "LastLayerKSN",
    "Method",
    "Setting",
    "Vadam",
    "check_settings",
    "did_you_mean",
    "make",
    "options_of",
    "setting",
    "settings_of",
]

"""Every system of the paper, and what a user would pick instead, behind one interface: see `Method`."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from kernelseed.methods.base import Engine, Method
from kernelseed.methods.natural import IVON, VOGN, Vadam
from kernelseed.methods.point import Baseline, Dropout, Ensemble
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


def make(name: str, **options: Any) -> Method:
    """A method by name. Options that are None keep the method's default.

    >>> make("ksn", delta=0.5).label(ensemble=True)
    'KSN-E δ=0.5'
    """
    if name not in METHODS:
        raise ValueError(f"method is {name!r}; allowed are {', '.join(METHODS)}.{_hint(name, list(METHODS))}")
    allowed = options_of(name)
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in allowed:
            raise ValueError(
                f"{key} is no option of method {name!r}, which has: {', '.join(allowed)}.{_hint(key, allowed)}"
            )
    hints = get_type_hints(METHODS[name])
    for key, value in given.items():
        kinds = get_args(hints[key]) or (hints[key],)
        if isinstance(value, bool) or not isinstance(value, (*kinds, int) if float in kinds else kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{key} is {value!r}; method {name!r} takes it as {wanted}.")
    return METHODS[name](**given)


def options_of(name: str) -> list[str]:
    """The hyperparameters that a method has."""
    return [field.name for field in fields(METHODS[name])]


def _hint(given: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(given, allowed, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


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
    "LastLayerKSN",
    "Method",
    "Vadam",
    "make",
    "options_of",
]

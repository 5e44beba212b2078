"""Arguments that many functions take, checked in one voice."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from kernelseed.errors import ArgumentError, ArgumentTypeError


def check_count(name: str, value: Any, least: int, remedy: str) -> None:
    """An error unless the value is a whole number that is large enough."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(f"{name} is {value!r}; it must be a whole number: {remedy}.")
    if value < least:
        raise ArgumentError(f"{name} is {value}; it must be at least {least}: {remedy}.")


def check_number(name: str, value: Any, remedy: str) -> None:
    """An error unless the value is a number; its limits are its function's."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(f"{name} is {value!r}; it must be a number: {remedy}.")


def check_share(name: str, value: Any, remedy: str) -> None:
    """An error unless the value is a number between 0 and 1."""
    check_number(name, value, remedy)
    if not 0 < value < 1:
        raise ArgumentError(f"{name} is {value}; allowed: 0 < {name} < 1: {remedy}.")


def check_kind(name: str, value: Any, kind: type | tuple[type, ...], remedy: str) -> None:
    """An error unless the value is of this kind, or of one of these."""
    if not isinstance(value, kind):
        wanted = " or a ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ArgumentTypeError(f"{name} is a {type(value).__name__}; it must be a {wanted}: {remedy}.")


def rounded_up(share: float) -> float:
    """A share to four digits, so that what a message recommends is allowed.

    >>> rounded_up(1 / 3)
    0.3334
    """
    return math.ceil(1e4 * share) / 1e4

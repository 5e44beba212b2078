"""The numbers that the paper printed, as data."""

from __future__ import annotations

import functools
import json
from importlib import resources


@functools.cache
def _all() -> dict[str, dict[str, dict[str, float]]]:
    source = resources.files("kernelseed.reproduction").joinpath("published.json")
    tables: dict[str, dict[str, dict[str, float]]] = json.loads(source.read_text(encoding="utf-8"))
    return tables


def published(data: str) -> dict[str, dict[str, float]]:
    """A table of the paper: parameters, relative size and metrics by the row's name.

    >>> published("fashion-mnist")["KSN-E 0.25"]["accuracy"]
    0.8724
    """
    return _all()[data]

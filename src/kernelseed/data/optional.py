"""Packages that are imported where they are needed: importing kernelseed.data takes torch and numpy only."""

from __future__ import annotations

import importlib
from typing import Any

from kernelseed.errors import MissingPackageError


def require(module: str, purpose: str) -> Any:
    """The module, or an error that says what it is needed for and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f'{purpose} needs {module}, which can\'t be imported ({error}): pip install "kernelseed[data]".',
            name=module,
        ) from error

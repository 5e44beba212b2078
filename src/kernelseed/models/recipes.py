"""Recipes: a model of ours as JSON, and the same model built from it again.

A family's file registers a builder under the builder's own name, and its models say by which builder and with which
arguments they were made. Arguments may come from a file that a stranger wrote, so a builder checks its own.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.fast import TrimmedConv2d, trim
from kernelseed.models.noisy import WithNoise

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])

BUILDERS: dict[str, Callable[..., nn.Module]] = {}


def register(builder: Builder) -> Builder:
    """Let recipes name this builder."""
    BUILDERS[builder.__name__] = builder
    return builder


class RecipeModel(nn.Module, ABC):
    """A model that a builder of ours made."""

    builder: str

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """What the builder takes to make this model again, as JSON."""


def require_counts(**counts: Any) -> None:
    """An error unless each is an int of at least 1."""
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentTypeError(f"{name} is {value!r}; it must be an int of at least 1.")
        if value < 1:
            raise ArgumentError(f"{name} is {value}; it must be at least 1.")


def require_rate(dropout: Any) -> None:
    """An error unless it is a share of activations to drop."""
    if not isinstance(dropout, (int, float)) or isinstance(dropout, bool):
        raise ArgumentTypeError(f"dropout is {dropout!r}; it must be a number: 0 <= dropout < 1.")
    if not 0 <= dropout < 1:
        raise ArgumentError(f"dropout is {dropout}; it is the share of activations to drop: 0 <= dropout < 1.")


def dropout_rate(model: nn.Module) -> float:
    """The rate of now, which may have been set since the model was built."""
    return next((module.p for module in model.modules() if isinstance(module, nn.Dropout)), 0.0)


def recipe(model: nn.Module) -> dict[str, Any] | None:
    """How to build a model of this subpackage again, as JSON; None for any other model.

    >>> from kernelseed.models import resnet18
    >>> recipe(resnet18(10, in_channels=1, width=8))
    {'name': 'resnet18', 'num_classes': 10, 'in_channels': 1, 'stem': 'imagenet', 'width': 8, 'dropout': 0.0}
    """
    if isinstance(model, WithNoise):
        inside = recipe(model.model)
        return inside and {**inside, "noise": True}
    if not isinstance(model, RecipeModel):
        return None
    is_trimmed = any(isinstance(module, TrimmedConv2d) for module in model.modules())
    return {"name": model.builder, **model.arguments(), **({"trimmed": True} if is_trimmed else {})}


def from_recipe(given: dict[str, Any] | None) -> nn.Module:
    """The model that `recipe` describes.

    >>> from_recipe({"name": "resnet18", "num_classes": 5, "width": 8}).fc.out_features
    5
    """
    if given is None:
        raise ArgumentError("the model is none of kernelseed.models, so it can't be built from its recipe: give it.")
    if not isinstance(given, dict):
        raise ArgumentTypeError(f"the recipe is a {type(given).__name__}; it must be a dict with a name.")
    arguments = dict(given)
    name = arguments.pop("name", None)
    if not isinstance(name, str) or name not in BUILDERS:
        raise ArgumentError(f"model {name!r} is unknown; this version has {', '.join(BUILDERS)}: take one of them.")
    trimmed = arguments.pop("trimmed", False)  # as it was trained, so that predictions are the same to the last bit
    if not isinstance(trimmed, bool):
        raise ArgumentTypeError(f"trimmed is {trimmed!r}; it must be true or false.")
    noise = arguments.pop("noise", False)
    known = inspect.signature(BUILDERS[name]).parameters
    for argument in arguments:
        if argument not in known:
            raise ArgumentError(f"argument {argument!r} is unknown; {name} takes {', '.join(known)}.")
    model = BUILDERS[name](**arguments)
    return with_noise(trim(model) if trimmed else model, noise)


def with_noise(model: nn.Module, wanted: Any) -> nn.Module:
    """The model with its noise, if a recipe says so."""
    if not isinstance(wanted, bool):
        raise ArgumentTypeError(f"noise is {wanted!r}; it must be true or false.")
    return WithNoise(model) if wanted else model

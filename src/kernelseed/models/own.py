"""Models of your own: a module, a callable that makes one, or the name of such a callable, `package.module:function`.

What is imported and called is always what the caller says. A name that stands in a file is used only if the caller says
the same name, or that the file is to be trusted.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import nn

from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.models.recipes import BUILDERS, from_recipe, with_noise

Model: TypeAlias = nn.Module | Callable[..., nn.Module] | str
GIVEN = "given in Python"
"""In the place of a model's name, where it had none."""
FACTS = ("num_classes", "in_channels", "image_size")
"""What the data say. A function is told those that it has a parameter for."""


def is_path(name: object) -> bool:
    """Whether it has the form `package.module:function`.

    >>> is_path("my_project.nets:small"), is_path("resnet18"), is_path("os; x:y")
    (True, False, False)
    """
    if not isinstance(name, str):
        return False
    module, _, function = name.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *function.split(".")))


def own_recipe(
    name: str, facts: Mapping[str, Any], arguments: Mapping[str, Any], noise: bool = False
) -> dict[str, Any]:
    """How a model of your own was made, as JSON; its name is a path or GIVEN. With noise, `WithNoise` is around it."""
    return {"function": name, **facts, "arguments": dict(arguments), **({"noise": True} if noise else {})}


def build(
    recipe: Mapping[str, Any] | None,
    model: Model | None = None,
    trust_model: bool = False,
    where: str | os.PathLike[str] = "the config",
) -> nn.Module:
    """The model that a recipe describes, of ours or, if it is given again or trusted, of yours.

    model        a module, which is copied; a callable; or a name, which must be the recipe's own
    trust_model  import the function that the recipe names, and call it
    where        the recipe stands, for errors

    >>> build({"name": "mlp", "num_classes": 3, "in_channels": 2, "image_size": []}, "mlp")[-1].out_features
    3
    >>> build({"function": "given in Python", "in_features": 2, "arguments": {"out_features": 1}}, nn.Linear(2, 1))
    Linear(in_features=2, out_features=1, bias=True)
    """
    recipe = recipe if isinstance(recipe, dict) else {}
    name = recipe.get("function", recipe.get("name"))
    if model is None and "function" in recipe:
        model = agreed(name, trust_model, where)
    if isinstance(model, str):
        if model != name and (name is not None and name != GIVEN):
            raise ArgumentError(f"model is {model!r}, but {where} was made with {name!r}: give that one.")
        model = None if model in BUILDERS and model == name else import_function(model)
    if model is None:
        return from_recipe(recipe or None)
    noise = recipe.get("noise", False)
    if isinstance(model, nn.Module):
        return with_noise(copy.deepcopy(model), noise)
    arguments = recipe.get("arguments", {})
    facts = {key: recipe[key] for key in FACTS if key in recipe}
    return with_noise(call_function(model, facts, arguments if isinstance(arguments, dict) else {}), noise)


def import_function(path: str) -> Callable[..., nn.Module]:
    """The function that a path names.

    >>> import_function("torch.nn:Linear")
    <class 'torch.nn.modules.linear.Linear'>
    """
    if not is_path(path):
        raise ArgumentError(f"model is {path!r}; allowed are {', '.join(BUILDERS)} and package.module:function.")
    module_name, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):  # a module is there, but not all that it imports
            raise
        raise ArgumentError(
            f"model is {path!r}, but there is no module {error.name!r}: check its name, and that it is installed or "
            "in the current folder."
        ) from None
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise ArgumentError(f"model is {path!r}, but {module_name} has no {attributes!r}: name a function of it.")
        found = getattr(found, attribute)
    if not callable(found):
        raise ArgumentTypeError(
            f"model is {path!r}, which is of type {type(found).__name__}: name a function that returns an nn.Module."
        )
    return found


def call_function(
    function: Callable[..., nn.Module], facts: Mapping[str, Any], arguments: Mapping[str, Any]
) -> nn.Module:
    """Call it with its arguments and, of the facts, with those that it has a parameter for.

    >>> call_function(nn.Linear, {"num_classes": 3}, {"in_features": 2, "out_features": 1})
    Linear(in_features=2, out_features=1, bias=True)
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        signature = inspect.signature(function)
    except ValueError:  # some that are written in C have none
        raise ArgumentTypeError(f"model is {name}, whose parameters Python can't see: wrap it in a function.") from None
    given = {**{key: value for key, value in facts.items() if key in signature.parameters}, **arguments}
    try:
        signature.bind(**given)
    except TypeError as error:
        raise ArgumentTypeError(
            f"model is {name}{signature}, which can't be called with {given or 'no arguments'} ({error}): set its "
            "arguments with model_args."
        ) from None
    made = function(**given)
    if not isinstance(made, nn.Module):
        raise ArgumentTypeError(
            f"model is {name}, which returned a value of type {type(made).__name__}; it must return an nn.Module."
        )
    return made


def agreed(name: object, trust_model: bool, where: object) -> str:
    """A name that nobody but a file has said: used if the file is trusted, which is said in a line; else an error."""
    if not is_path(name):
        raise ArgumentError(
            f"{where} was made with a model that was given in Python: give it again, model=..., or say where it is, "
            "--model package.module:function."
        )
    if not trust_model:
        raise ArgumentError(
            f"{where} names the model {name!r}, and a file never chooses what is imported: say it again, --model "
            f"{name} (in Python: model={name!r}), or trust the file, --trust-model (trust_model=True)."
        )
    warnings.warn(f"as you trust {where}, {name} is imported and called, which it names as its model", stacklevel=3)
    return str(name)

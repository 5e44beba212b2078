"""Running a module with other tensors in place of some of its parameters and buffers.

It is done on a twin: shallow copies of the modules that own a replaced tensor, and of all that contain them. The twin
shares everything else with the original. Whatever a closure captures during the call, such as the recomputation of
activation checkpointing, keeps the tensors that it was called with.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


def call_with(module: nn.Module, tensors: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """Call the module with these parameters and buffers, by name; the module keeps its own.

    Stacked tensors run under `torch.func.vmap`, which is how many draws of a small network become one call.

    >>> layer = nn.Linear(2, 3, bias=False)
    >>> call_with(layer, {"weight": torch.ones(3, 2)}, torch.ones(1, 2))
    tensor([[2., 2., 2.]])
    """
    if torch.compiler.is_compiling():  # a compiler can't follow the making of modules, and has no use for a twin
        return torch.func.functional_call(module, dict(tensors), args, kwargs, tie_weights=False)
    twins = make_twins(module, tensors)
    before = {original: vars(twin).copy() for original, twin in twins.items()}
    output = twins.get(module, module)(*args, **kwargs)
    for original, twin in twins.items():
        _write_back(original, twin, before[original])
    return output


def make_twins(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[nn.Module, nn.Module]:
    """A twin for each module that owns or contains a replaced tensor."""
    owned: dict[nn.Module, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owned.setdefault(module.get_submodule(path), {})[leaf] = tensor
    parents: dict[nn.Module | None, list[nn.Module]] = {}
    for parent in module.modules():
        for child in parent._modules.values():
            parents.setdefault(child, []).append(parent)
    affected = list(owned)
    for child in affected:  # which grows on the way
        for parent in parents.get(child, ()):
            if parent not in owned:
                owned[parent] = {}
                affected.append(parent)
    twins = {original: _shallow_copy(original, replaced) for original, replaced in owned.items()}
    for original, twin in twins.items():
        _link(original, twin, twins)
    return twins


def _shallow_copy(original: nn.Module, replaced: dict[str, Tensor]) -> nn.Module:
    """The module with its own dictionaries, and the replaced tensors in them."""
    kind = type(original)
    # Written into the attributes themselves: the setter of nn.Module takes longer than all the rest.
    if kind._replicate_for_data_parallel is nn.Module._replicate_for_data_parallel:
        twin = kind.__new__(kind)
        attributes = vars(twin)
        attributes.update(vars(original))
    else:  # a class with a copying of its own: recurrent layers keep a list of their weights, which their setter fills
        twin = original._replicate_for_data_parallel()
        attributes = vars(twin)
        attributes.pop("_is_replica", None)
        for name, tensor in replaced.items():
            setattr(twin, name, tensor)
            attributes.pop(name, None)
    buffers = {name: tensor for name, tensor in replaced.items() if name in original._buffers}
    attributes["_buffers"] = {**original._buffers, **buffers} if buffers else original._buffers
    weights = {name: tensor for name, tensor in replaced.items() if name not in buffers}
    attributes["_parameters"] = {**original._parameters, **weights}
    return twin


_STRUCTURE = ("_parameters", "_buffers", "_modules")
_REFERRING = {list, tuple, dict, MethodType}


def _link(original: nn.Module, twin: nn.Module, twins: dict[nn.Module, nn.Module]) -> None:
    """Let the twin refer to twins where the original refers to their originals."""
    attributes = vars(twin)
    for name, value in attributes.items():
        if type(value) in _REFERRING and value and name not in _STRUCTURE:
            attributes[name] = _with_twins(value, twins)
    attributes["_modules"] = {name: twins.get(child, child) for name, child in original._modules.items()}  # type: ignore[arg-type]


def _with_twins(value: Any, twins: dict[nn.Module, nn.Module]) -> Any:
    """A list, tuple, dictionary or bound method that refers to twins; the value itself where it has no need to."""

    def twin_of(item: Any) -> Any:
        return twins.get(item, item) if isinstance(item, nn.Module) else item

    if isinstance(value, MethodType):
        owner = twin_of(value.__self__)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    items = value.values() if isinstance(value, dict) else value
    if not any(isinstance(item, nn.Module) and item in twins for item in items):
        return value
    if isinstance(value, dict):
        return {key: twin_of(item) for key, item in value.items()}
    return type(value)(twin_of(item) for item in value)


def _write_back(original: nn.Module, twin: nn.Module, before: dict[str, Any]) -> None:
    """Attributes that the call has set, as a module may in its forward, belong to the original."""
    after = vars(twin)
    if len(after) == len(before) and all(map(is_, after.values(), before.values())):
        return
    changed = {name: value for name, value in after.items() if before.get(name, before) is not value}
    vars(original).update({name: value for name, value in changed.items() if name not in _STRUCTURE})

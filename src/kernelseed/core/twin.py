"""Running a module with other tensors in place of some of its parameters and buffers.

It is done on a twin: shallow copies of the modules that own a replaced tensor, and of all that contain them. The twin
shares everything else with the original. Whatever a closure captures during the call, such as the recomputation of
activation checkpointing, keeps the tensors that it was called with.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    before = {key: dict(vars(twin)) for key, twin in twins.items()}
    output = twins.get(module, module)(*args, **kwargs)
    for original, attributes in before.items():
        _write_back(original, twins[original], attributes)
    return output


def make_twins(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[nn.Module, nn.Module]:
    """A twin for each module that owns or contains a replaced tensor."""
    owned: dict[nn.Module, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owned.setdefault(module.get_submodule(path), {})[leaf] = tensor
    parents = {child: [] for child in module.modules()}  # type: dict[nn.Module, list[nn.Module]]
    for parent in parents:
        for child in parent.children():
            parents[child].append(parent)
    affected = list(owned)
    for child in affected:  # which grows on the way
        affected += [parent for parent in parents[child] if parent not in owned]
        owned |= {parent: {} for parent in parents[child] if parent not in owned}
    twins = {original: _shallow_copy(original, replaced) for original, replaced in owned.items()}
    for original, twin in twins.items():
        _link(original, twin, twins)
    return twins


def _shallow_copy(original: nn.Module, replaced: dict[str, Tensor]) -> nn.Module:
    """The module with its own dictionaries, and the replaced tensors in them."""
    twin = original._replicate_for_data_parallel()  # recurrent layers know by it to copy their list of weights
    del twin._is_replica
    buffers = {name: tensor for name, tensor in replaced.items() if name in original._buffers}
    twin._buffers = original._buffers | buffers if buffers else original._buffers
    weights = {name: tensor for name, tensor in replaced.items() if name not in buffers}
    for name, tensor in weights.items():
        setattr(twin, name, tensor)  # recurrent layers put it into their list, too
        del vars(twin)[name]
    twin._parameters = original._parameters | weights
    return twin


_CONTAINERS = {list, tuple, dict, MethodType}


def _link(original: nn.Module, twin: nn.Module, twins: dict[nn.Module, nn.Module]) -> None:
    """Let the twin refer to twins where the original refers to their originals."""
    twin._modules = {name: twins.get(child, child) for name, child in original._modules.items()}  # type: ignore[arg-type]
    attributes = vars(twin)
    for name, value in attributes.items():
        if type(value) in _CONTAINERS and name not in _STRUCTURE:
            attributes[name] = _with_twins(value, twins)


_STRUCTURE = ("_parameters", "_buffers", "_modules")


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
    own = vars(original)
    for name, value in vars(twin).items():
        if name not in _STRUCTURE and (name not in before or before[name] is not value):
            own[name] = value

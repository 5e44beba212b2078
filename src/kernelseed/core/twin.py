"""Run a module with other tensors in place of some of its parameters and buffers, and in other modes.

The call runs on a twin: shallow copies of the modules that own a replaced tensor, and of all modules that contain them.
The twin shares everything else with the original. A closure that captures a module during the call, such as the
recomputation of activation checkpointing, therefore keeps the tensors of that call.

A module may refer to other modules in lists, tuples, dictionaries, bound methods, partial functions and hooks. The twin
refers to the twins there. Objects of other classes are shared and not searched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


def call_with(module: nn.Module, tensors: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """Call the module with these parameters and buffers, by name; the module itself is not changed.

    With stacked tensors it runs under `torch.func.vmap`: many draws of a small network in one call.

    >>> layer = nn.Linear(2, 3, bias=False)
    >>> call_with(layer, {"weight": torch.ones(3, 2)}, torch.ones(1, 2))
    tensor([[2., 2., 2.]])
    """
    return run_with(module, tensors, {}, args, kwargs)


Attributes = Mapping[nn.Module, Mapping[str, Any]]
"""What some modules have set during a call, such as the mode of a layer."""


def run_with(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    attributes: Attributes,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The same with other attributes of modules, too. No other thread that calls the module sees them."""
    if torch.compiler.is_compiling() and not attributes:
        # A compiler can't trace the creation of modules, and does not need a twin.
        return torch.func.functional_call(module, dict(tensors), tuple(args), dict(kwargs), tie_weights=False)
    twins = make_twins(module, tensors, attributes)
    before = [[d.copy() for d in _dictionaries(twin)] for twin in twins.values()]
    output = twins.get(module, module)(*args, **kwargs)
    originals = {twin: original for original, twin in twins.items()}
    for (original, twin), earlier in zip(twins.items(), before, strict=True):
        _write_back(original, twin, earlier, originals)
    return output


def make_twins(module: nn.Module, tensors: Mapping[str, Tensor], attributes: Attributes) -> dict[nn.Module, nn.Module]:
    """A twin for each module that owns or contains a replaced tensor or attribute."""
    owned: dict[nn.Module, dict[str, Tensor]] = {changed: {} for changed in attributes}
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owned.setdefault(module.get_submodule(path), {})[leaf] = tensor
    parents: dict[nn.Module | None, list[nn.Module]] = {}
    for parent in module.modules():
        for child in parent._modules.values():
            parents.setdefault(child, []).append(parent)
    affected = list(owned)
    for child in affected:  # the list grows during the loop
        for parent in parents.get(child, ()):
            if parent not in owned:
                owned[parent] = {}
                affected.append(parent)
    twins = {original: _shallow_copy(original, replaced) for original, replaced in owned.items()}
    for original, twin in twins.items():
        _link(original, twin, twins)
        vars(twin).update(attributes.get(original, {}))
    return twins


def _shallow_copy(original: nn.Module, replaced: dict[str, Tensor]) -> nn.Module:
    """A copy of the module with its own dictionaries, which hold the replaced tensors."""
    kind = type(original)
    # Written into __dict__, because nn.Module.__setattr__ takes longer than everything else here.
    if kind._replicate_for_data_parallel is nn.Module._replicate_for_data_parallel:
        twin = kind.__new__(kind)
        attributes = vars(twin)
        attributes.update(vars(original))
    else:  # recurrent layers have their own copying: they keep a list of their weights, which __setattr__ fills
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
    attributes["_compiled_call_impl"] = None  # of `module.compile()`, which runs the original
    return twin


_STRUCTURE = ("_parameters", "_buffers", "_modules")
_REFERRING = {list, tuple, dict, OrderedDict, MethodType, partial}
_DEPTH = 4  # of nested lists


def _link(original: nn.Module, twin: nn.Module, twins: dict[nn.Module, nn.Module]) -> None:
    """Replace the twin's references to original modules by references to their twins."""
    attributes = vars(twin)
    for name, value in attributes.items():
        if name not in _STRUCTURE and ((type(value) in _REFERRING and value) or isinstance(value, nn.Module)):
            attributes[name] = _translated(value, twins)
    attributes["_modules"] = {name: twins.get(child, child) for name, child in original._modules.items()}  # type: ignore[arg-type]


def _translated(value: Any, names: dict[nn.Module, nn.Module], depth: int = _DEPTH) -> Any:
    """The value with its modules replaced; the same object if it refers to none of them."""
    if isinstance(value, nn.Module):
        return names.get(value, value)
    kind = type(value)
    if kind not in _REFERRING or not depth:
        return value
    parts: Sequence[Any]
    remake: Callable[..., Any]
    if kind is MethodType:
        parts, remake = [value.__self__], lambda owner: MethodType(value.__func__, owner)
    elif kind is partial:
        parts, remake = [value.func, value.args, value.keywords], lambda f, args, kwargs: partial(f, *args, **kwargs)
    elif kind in (dict, OrderedDict):
        parts, remake = [*value.values()], lambda *items: kind(zip(value, items, strict=True))
    else:
        parts, remake = value, lambda *items: kind(items)
    translated = [_translated(part, names, depth - 1) for part in parts]
    return value if all(map(is_, translated, parts)) else remake(*translated)


def _dictionaries(module: nn.Module) -> list[dict[str, Any]]:
    attributes = vars(module)
    return [attributes, *(attributes[name] for name in _STRUCTURE)]


def _write_back(
    original: nn.Module, twin: nn.Module, before: list[dict[str, Any]], originals: dict[nn.Module, nn.Module]
) -> None:
    """Set or delete on the original what the forward has set or deleted on the twin."""
    for theirs, after, earlier in zip(_dictionaries(original), _dictionaries(twin), before, strict=True):
        if len(after) == len(earlier) and all(map(is_, after.values(), earlier.values())):
            continue
        for name in earlier.keys() - after.keys():
            theirs.pop(name, None)
        for name, value in after.items():
            given = earlier.get(name)
            lent = isinstance(given, Tensor) and given is not theirs.get(name)  # such as a buffer of a draw
            if (value is not given or name not in earlier) and not lent:
                theirs[name] = _translated(value, originals)

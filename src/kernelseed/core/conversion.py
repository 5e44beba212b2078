"""Conversion: any module becomes a Bayesian one, and the module that was given stays as it was."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from kernelseed.core.arguments import check_kind, check_number
from kernelseed.core.network import BayesianModule
from kernelseed.core.rho_gaussian import RHO_OFFSET
from kernelseed.core.weights import MeanField, Pruned, WeightDistribution, rho_of_share
from kernelseed.errors import ArgumentError, ArgumentTypeError

Where = Callable[[str, nn.Parameter], bool]


def bayesianize(
    model: nn.Module, *, rho_offset: float = RHO_OFFSET, sigma: float | None = None, where: Where | None = None
) -> BayesianModule:
    """An ordinary mean-field Bayesian network (BNN): a mean, which starts at the model's weight, and a rho each.

    By default it converts what `germinate` would; `where(name, parameter)` is asked about every parameter, so
    biases can be Bayesian too. `rho_offset` and `sigma` are those of `germinate`.

    >>> net = bayesianize(nn.Linear(20, 30))
    >>> sum(p.numel() for p in net.parameters())
    1230
    """
    start = sigma_start(rho_offset, sigma)
    return convert(model, lambda weight: MeanField(weight, start(weight)), where, least_axes=2 if where is None else 1)


def sigma_start(rho_offset: float, sigma: float | None) -> Callable[[Tensor], float]:
    """Where a weight's rho starts: at the offset, or where sigma is a share of the weight's root mean square."""
    check_number("rho_offset", rho_offset, "sigma starts at log(1 + exp(rho_offset))")
    if not math.isfinite(rho_offset):
        raise ArgumentError(f"rho_offset is {rho_offset}; it must be finite: sigma starts at log(1 + exp(rho_offset)).")
    if sigma is None:
        return lambda weight: rho_offset
    check_number("sigma", sigma, "it is a share of a weight's root mean square, such as 0.05")
    if not (sigma > 0 and math.isfinite(sigma)):
        raise ArgumentError(f"sigma is {sigma}; it is a share of a weight's root mean square, such as 0.05: above 0.")
    return lambda weight: float(rho_of_share(weight, sigma))


def convert(
    model: nn.Module,
    distribution: Callable[[Tensor], WeightDistribution],
    where: Where | None = None,
    *,
    least_axes: int = 2,
) -> BayesianModule:
    """A Bayesian network with `distribution(weight)` for each chosen parameter, of any distribution.

    >>> net = convert(nn.Linear(20, 30), lambda weight: MeanField(weight))
    >>> list(net.weights)
    ['weight']
    """
    chosen = choose_parameters(model, where, least_axes)
    return assemble(model, chosen, {name: distribution(parameter.detach()) for name, (parameter, _) in chosen.items()})


Chosen = dict[str, tuple[nn.Parameter, list[str]]]


def assemble(model: nn.Module, chosen: Chosen, weights: dict[str, WeightDistribution]) -> BayesianModule:
    """The Bayesian network of these distributions, one for each chosen parameter."""
    for name, (parameter, names) in chosen.items():
        if (kept := _kept_rows(model, parameter, names)) is not None:
            weights[name] = Pruned.further(weights[name], kept)
        if not parameter.requires_grad:  # otherwise the distribution decides, which may fix a part of itself
            weights[name].requires_grad_(False)
    aliases = {alias: name for name, (_, names) in chosen.items() for alias in names[1:]}
    return BayesianModule(_skeleton(model, chosen), weights, aliases)


def choose_parameters(model: nn.Module, where: Where | None, least_axes: int = 2) -> Chosen:
    """The parameters that would be converted, by name, with all names of the places that hold them."""
    check_kind("model", model, nn.Module, "an instance, such as nn.Linear(20, 3)")
    if where is not None and not callable(where):
        raise ArgumentTypeError(
            f"where is {where!r}; it is a function of a parameter and its name: where=lambda name, parameter: "
            'name == "0.weight".'
        )
    _require_plain(model)
    candidates = {
        names[0]: (parameter, names)
        for parameter, names in places(model).values()
        if parameter.is_floating_point() and parameter.dim() >= least_axes and parameter.numel()
    }
    choose = where or default_choice(model)
    chosen = {name: entry for name, entry in candidates.items() if choose(name, entry[0])}
    if not chosen:
        shown = [f"{n} {tuple(p.shape)}{'' if p.requires_grad else ', frozen'}" for n, (p, _) in candidates.items()]
        there = ", ".join(shown) or "none"
        asked = "where" if where else "the default choice"
        raise ArgumentError(
            f"{asked} matches no parameter of {type(model).__name__}, so nothing would be Bayesian. "
            f"Parameters of {least_axes} or more axes that it could match: {there}."
        )
    for name, (parameter, names) in chosen.items():
        if not parameter.is_meta and not parameter.detach().isfinite().all():
            raise ArgumentError(
                f"{name} has values that are infinite or no numbers; start from a model whose training went well, or "
                "leave it out by where=."
            )
        if any(getattr(owner, "sparse", False) is True for owner in _owners(model, names)):
            raise ArgumentError(
                f"{name} is of an embedding with sparse=True, and the gradient of a drawn weight is dense; build the "
                "embedding with sparse=False, or leave it out by where=."
            )
    return chosen


def _owners(model: nn.Module, names: list[str]) -> list[nn.Module]:
    """The modules that hold a parameter, by all its names."""
    return [model.get_submodule(name.rpartition(".")[0]) for name in names]


def _kept_rows(model: nn.Module, parameter: Tensor, names: list[str]) -> Tensor | None:
    """What is not the padding of an embedding; None if nothing is. A plain network's padding is 0 and stays so.

    Tied to another layer, or from somebody's file, the row may be anything, and learns there.
    """
    owners = _owners(model, names)
    if not all(isinstance(owner, nn.Embedding | nn.EmbeddingBag) for owner in owners):
        return None
    padding: set[Any] = {owner.padding_idx for owner in owners}
    row = padding.pop()
    if padding or row is None or parameter.detach()[row].any():
        return None
    kept = torch.ones(parameter.shape, dtype=torch.bool, device=parameter.device)
    kept[row] = False
    return kept


def places(model: nn.Module) -> dict[int, tuple[nn.Parameter, list[str]]]:
    """Every parameter with the names of the places that hold it; a module that stands twice is one place."""
    slots: dict[int, tuple[nn.Parameter, list[str]]] = {}
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{leaf}" if path else leaf
            slots.setdefault(id(parameter), (parameter, []))[1].append(name)
    return slots


def default_choice(model: nn.Module) -> Where:
    """All that is trained, but for normalisation layers and the magnitudes of `weight_norm`."""
    modules = dict(model.named_modules())
    magnitudes = set(_magnitudes(modules))

    def choose(name: str, parameter: nn.Parameter) -> bool:
        # By name, because every framework brings normalisation classes of its own and they share no base.
        trained = parameter.requires_grad and name not in magnitudes
        return trained and "norm" not in type(modules[name.rpartition(".")[0]]).__name__.lower()

    return choose


def _magnitudes(modules: dict[str, nn.Module]) -> Iterator[str]:
    """Names of the parameters that are a vector of lengths, although weight_norm gives them a weight's axes."""
    for path, module in modules.items():
        prefix = f"{path}." if path else ""
        if isinstance(module, nn.utils.parametrize.ParametrizationList) and type(module[0]).__name__ == "_WeightNorm":
            yield f"{prefix}original0"
        hooks: Iterable[Any] = module._forward_pre_hooks.values()  # the older nn.utils.weight_norm
        for hook in hooks:
            if type(hook).__name__ == "WeightNorm":
                yield f"{prefix}{hook.name}_g"


def _require_plain(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, BayesianModule):
            raise ArgumentTypeError(
                f"model{'.' + name if name else ''} is a BayesianModule already; convert the plain model, or "
                "take ks.collapse(net) to have one again."
            )
        if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
            raise ArgumentTypeError(
                f"model{'.' + name if name else ''} is a {type(module).__name__}, which calls what was compiled with "
                "the weights that it had; convert the model first, and compile the network."
            )
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ArgumentError(
            f"model has parameters without a shape yet ({', '.join(lazy)}); run one batch through it first: model(x)."
        )


def _skeleton(model: nn.Module, chosen: Chosen) -> nn.Module:
    """A copy of the model whose chosen parameters are None; they are not copied on the way."""
    nothing = nn.Parameter(torch.empty(0))
    skeleton = deep_copy(model, {id(parameter): nothing for parameter, _ in chosen.values()})
    remove_parameters(skeleton, [name for _, names in chosen.values() for name in names])
    return skeleton


def remove_parameters(model: nn.Module, names: Iterable[str]) -> None:
    """Leave None in the places of parameters."""
    for name in names:
        path, _, leaf = name.rpartition(".")
        model.get_submodule(path)._parameters[leaf] = None
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            _forget_weights(module)


def deep_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A copy of the model. What a forward pass left in its attributes is copied without its graph."""
    memo = dict(memo or {})  # torch itself refuses: weight_norm and spectral_norm of torch.nn.utils leave their weight
    for module in model.modules():
        for tensor in _tensors_in(vars(module)):
            if not tensor.is_leaf:
                memo[id(tensor)] = tensor.detach().clone()
    return copy.deepcopy(model, memo)


def _tensors_in(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors in a module's attribute, also in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(part, depth - 1)


def _forget_weights(layer: nn.RNNBase) -> None:
    """A recurrent layer keeps a list of its weights, too; it looks again where an entry is not what it was."""
    parametrised = getattr(layer, "parametrizations", {})  # to look at these now would compute them from nothing
    layer._flat_weights = [
        torch.empty(0) if name in parametrised else getattr(layer, name, None) for name in layer._flat_weights_names
    ]
    layer._flat_weight_refs = [None if weight is None else weakref.ref(weight) for weight in layer._flat_weights]

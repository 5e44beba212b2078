"""Conversion: any module becomes a Bayesian one, and the module that was given stays as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from kernelseed.core.arguments import check_number
from kernelseed.core.network import BayesianModule
from kernelseed.core.rho_gaussian import RHO_OFFSET
from kernelseed.core.weights import MeanField, WeightDistribution, rho_of_share
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
    for name, (parameter, _) in chosen.items():
        if not parameter.requires_grad:  # otherwise the distribution decides, which may fix a part of itself
            weights[name].requires_grad_(False)
    aliases = {alias: name for name, (_, names) in chosen.items() for alias in names[1:]}
    return BayesianModule(_skeleton(model, chosen), weights, aliases)


def choose_parameters(model: nn.Module, where: Where | None, least_axes: int = 2) -> Chosen:
    """The parameters that would be converted, by name, with all names of the places that hold them."""
    _require_plain(model)
    candidates = {
        names[0]: (parameter, names)
        for parameter, names in places(model).values()
        if parameter.is_floating_point() and parameter.dim() >= least_axes and parameter.numel()
    }
    choose = where or default_choice(model)
    chosen = {name: entry for name, entry in candidates.items() if choose(name, entry[0])}
    if not chosen:
        there = ", ".join(f"{name} {tuple(p.shape)}" for name, (p, _) in candidates.items()) or "none"
        asked = "where" if where else "the default choice"
        raise ArgumentError(
            f"{asked} matches no parameter of {type(model).__name__}, so nothing would be Bayesian. "
            f"Parameters of {least_axes} or more axes that it could match: {there}."
        )
    return chosen


def places(model: nn.Module) -> dict[int, tuple[nn.Parameter, list[str]]]:
    """Every parameter with the names of the places that hold it; a module that stands twice is one place."""
    slots: dict[int, tuple[nn.Parameter, list[str]]] = {}
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{leaf}" if path else leaf
            slots.setdefault(id(parameter), (parameter, []))[1].append(name)
    return slots


def default_choice(model: nn.Module) -> Where:
    """All parameters but those of normalisation layers, and the magnitudes of `weight_norm`."""
    modules = dict(model.named_modules())
    magnitudes = set(_magnitudes(modules))

    def choose(name: str, parameter: nn.Parameter) -> bool:
        # By name, because every framework brings normalisation classes of its own and they share no base.
        return name not in magnitudes and "norm" not in type(modules[name.rpartition(".")[0]]).__name__.lower()

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
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ArgumentError(
            f"model has parameters without a shape yet ({', '.join(lazy)}); run one batch through it first: model(x)."
        )


def _skeleton(model: nn.Module, chosen: Chosen) -> nn.Module:
    """A copy of the model whose chosen parameters are None; they are not copied on the way."""
    nothing = nn.Parameter(torch.empty(0))
    skeleton = deep_copy(model, {id(parameter): nothing for parameter, _ in chosen.values()})
    for _, names in chosen.values():
        for name in names:
            remove_parameter(skeleton, name)
    return skeleton


def deep_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A copy of the model. What a forward pass left in its attributes is copied without its graph."""
    memo = dict(memo or {})  # torch itself refuses: weight_norm and spectral_norm of torch.nn.utils leave their weight
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


def remove_parameter(model: nn.Module, name: str) -> None:
    """Leave None in a parameter's place."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    module._parameters[leaf] = None
    if isinstance(module, nn.RNNBase):  # which keeps a list of its weights, too
        module._init_flat_weights()

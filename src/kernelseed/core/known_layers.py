"""Several draws of a network of well-known layers, in one pass: one product for each layer, and not for each draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from kernelseed.core.values import StackedFactors
from kernelseed.models import MLP, WithNoise

ELEMENTWISE = (
    *(nn.Identity, nn.Dropout, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    nn.LayerNorm,  # over the last axes of whatever it gets
)
FLATTEN = nn.Flatten()  # what a perceptron of ours does first


class KnownLayers:
    """The layers of a network that runs them one after another, each on every example by itself; with their names."""

    def __init__(self, layers: Sequence[tuple[str, nn.Module]]) -> None:
        self._layers = layers

    @classmethod
    def of(cls, module: nn.Module, drawn: Mapping[str, Tensor | StackedFactors]) -> KnownLayers | None:
        """Those of a module in eval mode; None if it has any other layer, or others than linear ones are drawn."""
        names = {layer: name for name, layer in module.named_modules()}
        if any(_is_special(m) for m in names):
            return None
        layers = [(names.get(layer, ""), layer) for layer in _leaves(module)]
        linear = {name for name, layer in layers if type(layer) is nn.Linear and _join(name, "weight") in drawn}
        allowed = {_join(name, leaf) for name in linear for leaf in ("weight", "bias")}
        known = all(type(layer) in (nn.Linear, nn.Flatten, WithNoise, *ELEMENTWISE) for _, layer in layers)
        return cls(layers) if known and drawn.keys() <= allowed else None

    def __call__(self, x: Tensor, drawn: Mapping[str, Tensor | StackedFactors]) -> Tensor:
        """The outputs for tensors (draws, ...) or their factors by name, (draws, N, ...)."""
        draws = len(next(iter(drawn.values())))
        stacked = False
        for name, layer in self._layers:
            if (weight := drawn.get(_join(name, "weight"))) is not None:
                assert isinstance(layer, nn.Linear)
                x = _linear(x if stacked else x.expand(draws, *x.shape), weight, drawn.get(_join(name, "bias")), layer)
                stacked = True
            elif isinstance(layer, WithNoise):
                x = layer.beside(x)
            elif stacked and isinstance(layer, nn.Flatten):
                first, last = (axis + 1 if axis >= 0 else axis for axis in (layer.start_dim, layer.end_dim))
                x = x.flatten(first, last)
            else:
                in_place = not stacked and getattr(layer, "inplace", False)
                x = layer(x.clone() if in_place else x)  # what it was given is the user's
        return x


def _linear(
    x: Tensor, weight: Tensor | StackedFactors, drawn_bias: Tensor | StackedFactors | None, layer: nn.Linear
) -> Tensor:
    assert not isinstance(drawn_bias, StackedFactors)  # which have two axes at least
    bias = layer.bias if drawn_bias is None else drawn_bias[:, None]
    rows = x.reshape(len(x), -1, x.shape[-1])
    *first, last = weight.matrices(rows.shape[1]) if isinstance(weight, StackedFactors) else (weight.mT,)
    for matrix in first:
        rows = torch.bmm(rows, matrix)
    found = torch.bmm(rows, last) if bias is None else torch.baddbmm(bias, rows, last)
    return found.view(*x.shape[:-1], found.shape[-1])


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The layers in the order of execution, as often as they are called."""
    if type(module) is WithNoise:
        yield from _leaves(module.model)
        yield module
    elif isinstance(module, nn.Sequential) and type(module).forward in (nn.Sequential.forward, MLP.forward):
        if type(module).forward is MLP.forward:
            yield FLATTEN
        for child in module:
            yield from _leaves(child)
    else:
        yield module


def _is_special(module: nn.Module) -> bool:
    """Whether a call of it is more than its class says, or not what it is in eval mode."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return bool(module.training or hooks or "forward" in vars(module))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

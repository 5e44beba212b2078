"""Several draws of a network of well-known layers, in one pass: one product for each layer, and not for each draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from kernelseed.core.slices import Stack, StackedFactors
from kernelseed.models import MLP, WithNoise

NOTHING = (nn.Identity, nn.Dropout)  # in eval mode
ELEMENTWISE = (
    *(*NOTHING, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    nn.LayerNorm,  # over the last axes of whatever it gets
)
KNOWN = (nn.Linear, nn.Flatten, WithNoise, *ELEMENTWISE)
FLATTEN = nn.Flatten()  # what a perceptron of ours does first


class KnownLayers:
    """The layers of a network that runs them one after another, each on every example by itself; with what is drawn."""

    def __init__(self, layers: Sequence[tuple[nn.Module, Stack | None, Tensor | None]], draws: int) -> None:
        self._layers, self._draws = layers, draws

    @classmethod
    def of(cls, module: nn.Module, names: Mapping[nn.Module, str], drawn: Mapping[str, Stack]) -> KnownLayers | None:
        """Those of a module in eval mode; None if it has any other layer, or others than linear ones are drawn.

        names   the paths of its modules
        """
        if any(_is_special(m) for m in names):
            return None
        layers: list[tuple[nn.Module, Stack | None, Tensor | None]] = []
        allowed = set()
        for layer in _leaves(module):
            if type(layer) not in KNOWN:
                return None
            weight, bias = (_join(names.get(layer, ""), leaf) for leaf in ("weight", "bias"))
            if type(layer) is nn.Linear and weight in drawn:
                drawn_bias = drawn.get(bias)
                assert not isinstance(drawn_bias, StackedFactors)  # which have two axes at least
                layers.append((layer, drawn[weight], layer.bias if drawn_bias is None else drawn_bias[:, None]))
                allowed |= {weight, bias}
            elif not isinstance(layer, NOTHING):
                layers.append((layer, None, None))
        return cls(layers, len(next(iter(drawn.values())))) if drawn.keys() <= allowed else None

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of all draws, (draws, N, ...)."""
        stacked = False
        for layer, weight, bias in self._layers:
            if weight is not None:
                x = _linear(x if stacked else x.expand(self._draws, *x.shape), weight, bias)
                stacked = True
            elif stacked and type(layer) is nn.ReLU:
                x = x.relu_()  # it is ours, and of a product's size
            elif isinstance(layer, WithNoise):
                x = layer.beside(x)
            elif stacked and isinstance(layer, nn.Flatten):
                first, last = (axis + 1 if axis >= 0 else axis for axis in (layer.start_dim, layer.end_dim))
                x = x.flatten(first, last)
            else:
                in_place = not stacked and getattr(layer, "inplace", False)
                x = layer(x.clone() if in_place else x)  # what it was given is the user's
        return x


def _linear(x: Tensor, weight: Stack, bias: Tensor | None) -> Tensor:
    rows = x if x.dim() == 3 else x.reshape(len(x), -1, x.shape[-1])
    *first, last = weight.matrices(rows.shape[1]) if isinstance(weight, StackedFactors) else (weight.mT,)
    for matrix in first:
        rows = torch.bmm(rows, matrix)
    found = torch.bmm(rows, last) if bias is None else torch.baddbmm(bias, rows, last)
    return found if x.dim() == 3 else found.view(*x.shape[:-1], found.shape[-1])


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

"""Factorised inference: the posterior mean as two thin layers instead of one dense one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.export import collapse
from kernelseed.core.network import BayesianModule
from kernelseed.core.weights import FixedKernelSeed, KernelSeed, is_transposed
from kernelseed.fast.taps import TrimmedConv2d
from kernelseed.fast.thin import thin_is_cheaper, thin_weights

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, TrimmedConv2d)
"""These very classes: one derived from them may do something else with its weight."""


@torch.no_grad()
def factorise(net: BayesianModule) -> nn.Module:
    """The posterior mean as an ordinary module that does fewer multiplications.

    A germinated weight is the product of its germinator and its seed, so its layer is a k x k convolution into C_pip
    channels and a 1 x 1 (or the reverse, where the weight is transposed): at delta .25, .28 of the dense network's
    multiplications. Layers where that would not be cheaper, and layers of other kinds, stay dense. The result equals
    `collapse(net)` within rounding.

    >>> import kernelseed as ks
    >>> factorise(ks.germinate(nn.Linear(256, 256), delta=0.25))
    Sequential(
      (0): Linear(in_features=256, out_features=64, bias=False)
      (1): Linear(in_features=64, out_features=256, bias=True)
    )
    """
    plain = collapse(net)
    for name, weight in net.weights.items():
        path, _, leaf = name.rpartition(".")
        layer = plain.get_submodule(path)
        if leaf != "weight" or not isinstance(weight, (KernelSeed, FixedKernelSeed)):
            continue
        if name in net.weights.aliases.values() or not _cheaper(layer, weight):
            continue
        pair = _pair(layer, weight)
        if not path:
            return pair.train(plain.training)
        parent, _, child = path.rpartition(".")
        setattr(plain.get_submodule(parent), child, pair.train(layer.training))
    return plain


def _cheaper(layer: nn.Module, weight: KernelSeed | FixedKernelSeed) -> bool:
    if type(layer) in CONVOLUTIONS:
        assert isinstance(layer, CONVOLUTIONS)
        return layer.groups == 1 and thin_is_cheaper(weight.shape, len(weight.seed), layer.stride)
    return type(layer) is nn.Linear and thin_is_cheaper(weight.shape, len(weight.seed))


def _pair(layer: nn.Module, weight: KernelSeed | FixedKernelSeed) -> nn.Sequential:
    """The seed as a k x k layer and the germinator as a 1 x 1, in the order that the weight's orientation asks for."""
    first, second = thin_weights(weight.mean_germinator.detach(), weight.seed.detach(), weight.shape)
    bias = layer.bias.detach() if isinstance(layer.bias, Tensor) else None
    if isinstance(layer, nn.Linear):
        return nn.Sequential(_filled(nn.Linear, first, None), _filled(nn.Linear, second, bias))
    assert isinstance(layer, CONVOLUTIONS)
    point: dict[str, Any] = {"kernel_size": 1}
    spatial = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
    before, after = (point, spatial) if is_transposed(weight.shape) else (spatial, point)
    kind = type(layer)
    return nn.Sequential(_filled(kind, first, None, **before), _filled(kind, second, bias, **after))


def _filled(make: Callable[..., nn.Module], weight: Tensor, bias: Tensor | None, **arguments: Any) -> nn.Module:
    outputs, inputs = weight.shape[:2]
    layer = make(inputs, outputs, bias=bias is not None, device="meta", **arguments)
    layer.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
    if bias is not None:
        layer.bias = nn.Parameter(bias.clone())
    return layer

"""Factorised inference: the posterior mean as two thin layers instead of one dense one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from kernelseed.export import collapse
from kernelseed.network import BayesianModule
from kernelseed.weights import FixedKernelSeed, KernelSeed, is_transposed

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


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
    """Whether the two layers multiply less than the one, for each position of the output."""
    (outputs, inputs), taps, rank = weight.shape[:2], math.prod(weight.shape[2:]), len(weight.seed)
    if type(layer) is nn.Linear:
        return rank * (inputs + outputs) < inputs * outputs
    if type(layer) not in CONVOLUTIONS or layer.groups != 1:
        return False
    if is_transposed(weight.shape):  # the 1 x 1 comes first and runs at the input's resolution
        thin = rank * inputs * math.prod(layer.stride) + rank * outputs * taps  # type: ignore[arg-type]
    else:
        thin = rank * inputs * taps + rank * outputs
    return thin < inputs * outputs * taps


def _pair(layer: nn.Module, weight: KernelSeed | FixedKernelSeed) -> nn.Sequential:
    """The seed as a k x k layer and the germinator as a 1 x 1, in the order that the weight's orientation asks for."""
    seed, germinator = weight.seed.detach(), weight.mean_germinator.detach()
    bias = layer.bias.detach() if isinstance(layer.bias, Tensor) else None
    ones = (1,) * (seed.dim() - 2)
    if is_transposed(weight.shape):
        narrow = germinator.T.reshape(*germinator.T.shape, *ones)
        return nn.Sequential(_point(layer, narrow, None), _kernel(layer, seed.transpose(0, 1), bias))
    wide = germinator.reshape(*germinator.shape, *ones)
    return nn.Sequential(_kernel(layer, seed, None), _point(layer, wide, bias))


def _kernel(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A layer with the spatial arguments of the original."""
    if isinstance(layer, nn.Linear):
        return _filled(nn.Linear, weight, bias)
    assert isinstance(layer, CONVOLUTIONS)
    return _filled(
        type(layer),
        weight,
        bias,
        kernel_size=layer.kernel_size,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        padding_mode=layer.padding_mode,
    )


def _point(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A layer that mixes channels alone."""
    if isinstance(layer, nn.Linear):
        return _filled(nn.Linear, weight, bias)
    return _filled(type(layer), weight, bias, kernel_size=1)


def _filled(make: Callable[..., nn.Module], weight: Tensor, bias: Tensor | None, **arguments: object) -> nn.Module:
    outputs, inputs = weight.shape[:2]
    layer = make(inputs, outputs, bias=bias is not None, device="meta", **arguments)
    layer.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
    if bias is not None:
        layer.bias = nn.Parameter(bias.clone())
    return layer

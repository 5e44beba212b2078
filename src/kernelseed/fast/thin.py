"""Weights that are a germinator times a seed, run as two thin layers where that needs fewer multiplications."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from kernelseed.fast.germination import is_transposed
from kernelseed.fast.taps import conv2d as trimmed


def thin_is_cheaper(shape: torch.Size, rank: int, stride: Sequence[int] = (1,), positions: float = math.inf) -> bool:
    """Whether a k x k layer into `rank` channels and a 1 x 1 layer need fewer multiplications than the dense layer.

    positions  the number of output positions, over all images, that share the cost of computing the dense weight
    """
    (outputs, inputs), taps = shape[:2], math.prod(shape[2:])
    dense = inputs * outputs * taps * (1 + rank / positions)
    if is_transposed(shape):  # the 1 x 1 layer comes first and runs at the resolution of the input
        return rank * inputs * math.prod(stride) + rank * outputs * taps < dense
    return rank * inputs * taps + rank * outputs < dense


def thin_weights(germinator: Tensor, seed: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The weights of the two layers, in the order of execution."""
    points = (1,) * (len(shape) - 2)
    if is_transposed(shape):
        return germinator.T.reshape(*germinator.T.shape, *points), seed.transpose(0, 1)
    return seed, germinator.reshape(*germinator.shape, *points)


class ProductWeight(Tensor):
    """A weight that convolutions and linear layers run as two layers; all other functions get the product."""

    germinator: Tensor
    seed: Tensor
    dense: Callable[[], Tensor]

    @classmethod
    def of(cls, germinator: Tensor, seed: Tensor, shape: torch.Size, dense: Callable[[], Tensor]) -> ProductWeight:
        """The factors as a tensor subclass with the shape of the weight; `dense()` returns their product."""
        self = seed.new_empty(1).expand(shape).as_subclass(cls)
        self.germinator, self.seed, self.dense = germinator, seed, dense
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a convolution or a linear layer as two layers, and any other function on the product."""
        kwargs = kwargs or {}
        weight_given_second = len(args) > 1 and isinstance(args[1], cls) and not isinstance(args[0], cls)
        if func in LAYERS and weight_given_second:
            return LAYERS[func](*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            args, kwargs = tree_map_only(cls, lambda weight: weight.dense(), (args, kwargs))
        return func(*args, **kwargs)


def _positions(x: Tensor, weight: ProductWeight, stride: Sequence[int] = (1,)) -> float:
    """The output positions that share one dense weight: those of one batch in training, unlimited in prediction."""
    return max(1, x.numel() / weight.shape[1] / math.prod(stride)) if torch.is_grad_enabled() else math.inf


def _linear(x: Tensor, weight: ProductWeight, bias: Tensor | None = None) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        if not thin_is_cheaper(weight.shape, len(weight.seed), positions=_positions(x, weight)):
            return F.linear(x, weight.dense(), bias)
        first, second = thin_weights(weight.germinator, weight.seed, weight.shape)
        return F.linear(F.linear(x, first), second, bias)


def _convolution(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(
        x: Tensor,
        weight: ProductWeight,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            axes = weight.dim() - 2
            strides = stride if isinstance(stride, Sequence) else (stride,) * axes
            positions = _positions(x, weight, strides)
            if groups != 1 or not thin_is_cheaper(weight.shape, len(weight.seed), strides, positions):
                return function(x, weight.dense(), bias, stride, padding, dilation, groups)
            first, second = thin_weights(weight.germinator, weight.seed, weight.shape)
            wide = trimmed if function is torch.conv2d else function
            if is_transposed(weight.shape):
                return wide(function(x, first), second, bias, stride, padding, dilation)
            return function(wide(x, first, None, stride, padding, dilation), second, bias)

    return run


LAYERS: dict[Any, Callable[..., Tensor]] = {
    F.linear: _linear,
    **{function: _convolution(function) for function in (torch.conv1d, torch.conv2d, torch.conv3d)},
}

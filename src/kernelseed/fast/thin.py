"""Weights that are a germinator times a seed, run as two thin layers where that needs fewer multiplications."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelseed.fast.costs import Costs, current_costs
from kernelseed.fast.germination import is_transposed
from kernelseed.fast.stand_in import StandIn, empty_of_shape
from kernelseed.fast.taps import conv2d as trimmed
from kernelseed.fast.taps import live_convolution

MULTIPLICATIONS = Costs(convolution=1, product=1)
"""The costs of a layer whose images and processor are not known: multiplications alone count."""


@functools.lru_cache(maxsize=4096)
def thin_is_cheaper(
    shape: torch.Size,
    rank: int,
    pixels: float = 1,
    positions: float = 1,
    *,
    training: bool = False,
    taps: int | None = None,
    costs: Costs = MULTIPLICATIONS,
) -> bool:
    """Whether a k x k layer into `rank` channels and a 1 x 1 layer cost less than the dense layer.

    pixels, positions  the inputs and outputs of the layer, over all images: rows of a linear layer
    training           whether each call has its own dense weight, which it has to multiply out first
    taps               those that meet the image; by default all
    """
    outputs, inputs = shape[:2]
    every = math.prod(shape[2:])
    live = every if taps is None else taps

    def layer(inputs: int, outputs: int, taps: int, pixels: float, positions: float) -> float:
        if len(shape) == 2:
            return costs.product_time(positions, inputs, outputs)
        return costs.convolution_time(inputs, outputs, taps, pixels, positions, training=training)

    dense = layer(inputs, outputs, live, pixels, positions)
    if training:
        dense += costs.product_time(min(shape[:2]), rank, max(shape[:2]) * every)
    if is_transposed(shape):  # the 1 x 1 layer comes first, at the resolution of the input
        return layer(inputs, rank, 1, pixels, pixels) + layer(rank, outputs, live, pixels, positions) < dense
    return layer(inputs, rank, live, pixels, positions) + layer(rank, outputs, 1, positions, positions) < dense


def thin_weights(germinator: Tensor, seed: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The weights of the two layers, in the order of execution."""
    points = (1,) * (len(shape) - 2)
    if is_transposed(shape):
        return germinator.T.reshape(*germinator.T.shape, *points), seed.transpose(0, 1)
    return seed, germinator.reshape(*germinator.shape, *points)


class ProductWeight(StandIn):
    """A weight that convolutions and linear layers run as two layers; all other functions get the product."""

    germinator: Tensor
    seed: Tensor

    @classmethod
    def of(cls, germinator: Tensor, seed: Tensor, shape: torch.Size, dense: Callable[[], Tensor]) -> ProductWeight:
        """The factors as a tensor subclass with the shape of the weight; `dense()` returns their product."""
        self = empty_of_shape(seed, shape).as_subclass(cls)
        self.germinator, self.seed, self.dense = germinator, seed, dense
        return self


def _linear(x: Tensor, weight: ProductWeight, bias: Tensor | None = None) -> Tensor:
    rows = x.numel() / max(1, x.shape[-1])
    if not _runs_thin(weight, rows, rows):
        return F.linear(x, weight.dense(), bias)
    first, second = thin_weights(weight.germinator, weight.seed, weight.shape)
    return F.linear(F.linear(x, first), second, bias)


def _runs_thin(weight: ProductWeight, pixels: float, positions: float, taps: int | None = None) -> bool:
    return thin_is_cheaper(
        weight.shape,
        len(weight.seed),
        max(1, pixels),
        max(1, positions),
        training=torch.is_grad_enabled(),  # in prediction many batches share one dense weight
        taps=taps,
        costs=current_costs() if weight.germinator.is_cpu else MULTIPLICATIONS,
    )


def _convolution(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    library_or_trimmed = trimmed if function is torch.conv2d else function

    def run(
        x: Tensor,
        weight: ProductWeight,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        pixels = x.numel() / max(1, x.shape[1 - weight.dim()])
        axes = weight.dim() - 2
        strides = stride if isinstance(stride, Sequence) else (stride,) * axes
        positions, taps = pixels / math.prod(strides), None
        if function is torch.conv2d and not isinstance(padding, str):
            live = live_convolution(x.shape[-2:], weight.shape[-2:], stride, padding, dilation)
            positions, taps = pixels / math.prod(x.shape[-2:]) * live.positions, live.taps
        if groups != 1 or not _runs_thin(weight, pixels, positions, taps):
            return library_or_trimmed(x, weight.dense(), bias, stride, padding, dilation, groups)
        first, second = thin_weights(weight.germinator, weight.seed, weight.shape)
        if is_transposed(weight.shape):
            return library_or_trimmed(function(x, first), second, bias, stride, padding, dilation)
        return function(library_or_trimmed(x, first, None, stride, padding, dilation), second, bias)

    return run


ProductWeight.layers = {
    F.linear: _linear,
    **{function: _convolution(function) for function in (torch.conv1d, torch.conv2d, torch.conv3d)},
}

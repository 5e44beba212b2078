"""Kernel taps that only ever meet padding: on small pictures most of a deep layer's taps do, and need not be run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


class TrimmedConv2d(nn.Conv2d):
    """A convolution that leaves out the taps which no output position brings over the picture.

    A 28 x 28 picture reaches the last stage of a ResNet-18 as one pixel. Of a 3 x 3 kernel with padding only the centre
    meets it: the output is the same without the other eight taps, their gradient is zero either way, and the layer
    takes a ninth of the work.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Zeros beyond the picture are what makes a tap void, and whatever stands in for a tensor runs itself.
        if self.padding_mode != "zeros" or type(weight) not in (Tensor, nn.Parameter):
            return super()._conv_forward(input, weight, bias)
        return conv2d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.conv2d` without the void taps."""
    if not isinstance(padding, str):
        axes = zip(input.shape[-2:], weight.shape[-2:], _pair(stride), _pair(padding), _pair(dilation), strict=True)
        (rows, top), (columns, left) = (live_taps(*axis) for axis in axes)
        weight, padding = weight[:, :, rows, columns], (top, left)
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups)


def live_taps(extent: int, taps: int, stride: int, padding: int, dilation: int) -> tuple[slice, int]:
    """The taps along one axis that meet the picture, and the padding that they need.

    >>> live_taps(extent=1, taps=3, stride=1, padding=1, dilation=1)
    (slice(1, 2, None), 0)
    >>> live_taps(extent=8, taps=3, stride=1, padding=1, dilation=1)
    (slice(0, 3, None), 1)
    """
    everything = slice(0, taps), padding
    last = extent + 2 * padding - dilation * (taps - 1) - 1
    if last < 0:  # the kernel does not fit: the convolution says so itself
        return everything
    starts = range(-padding, last - padding + 1, stride)
    live = [tap for tap in range(taps) if any(0 <= start + tap * dilation < extent for start in starts)]
    if not live:
        return everything
    before = padding - live[0] * dilation
    after = starts[-1] + live[-1] * dilation + 1 - extent
    # A convolution pads both sides alike; what it would round away at the far end by its stride may be more.
    if before < 0 or not after <= before < after + stride:
        return everything
    return slice(live[0], live[-1] + 1), before


def trim(model: Model) -> Model:
    """Let a model's own 2-D convolutions leave out void taps, in place; the model is returned.

    >>> import torch
    >>> convolution = nn.Conv2d(4, 4, 3, padding=1)
    >>> pixel = torch.randn(2, 4, 1, 1)
    >>> before = convolution(pixel)
    >>> torch.allclose(trim(convolution)(pixel), before, atol=1e-6)
    True
    """
    for module in model.modules():
        if type(module) is nn.Conv2d:
            module.__class__ = TrimmedConv2d
    return model


def _pair(value: int | Sequence[int]) -> Sequence[int]:
    return value if isinstance(value, Sequence) else (value, value)

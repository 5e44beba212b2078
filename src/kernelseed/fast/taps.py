"""Convolutions of pictures hardly larger than the kernel, where most of the work is done on padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)
Windows = list[tuple[slice, slice]]


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
    """`torch.conv2d` without the void taps, and by matrix products where that is faster."""
    if not isinstance(padding, str):
        strides, dilations = _pair(stride), _pair(dilation)
        axes = zip(input.shape[-2:], weight.shape[-2:], strides, _pair(padding), dilations, strict=True)
        (rows, top), (columns, left) = (live_taps(*axis) for axis in axes)
        weight, padding = weight[:, :, rows, columns], (top, left)
        axes = zip(input.shape[-2:], weight.shape[-2:], strides, padding, dilations, strict=True)
        down, across = (windows(*axis) for axis in axes)
        if groups == 1 and input.dim() == 4 and len(input) >= BATCH and 0 < len(down) * len(across) <= POSITIONS:
            return by_position(input, weight, bias, down, across)
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups)


# Measured: below, the copies of the weight take longer than they save.
BATCH, POSITIONS = 64, 4


def by_position(input: Tensor, weight: Tensor, bias: Tensor | None, down: Windows, across: Windows) -> Tensor:
    """A convolution as one matrix product for each output position: what it sees, times the taps that meet it.

    down, across  the windows of the output's rows and columns

    A 3 x 3 convolution of four pixels with padding multiplies zeros in five of nine cases; these products in none, and
    their backward pass is made of matrix products too.
    """
    pixels = input.permute(0, 2, 3, 1).contiguous()  # channels last: a window is copied by whole rows of channels
    taps = weight.permute(2, 3, 1, 0).contiguous()
    outputs = [
        pixels[:, rows, columns].flatten(1) @ taps[tap_rows, tap_columns].flatten(0, 2)
        for rows, tap_rows in down
        for columns, tap_columns in across
    ]
    output = torch.stack(outputs, 1).unflatten(1, (len(down), len(across)))
    output = (output if bias is None else output + bias).permute(0, 3, 1, 2)
    # Laid out as the convolution would: a model may take a `view` of it.
    return output if input.stride(1) == 1 else output.contiguous()


def windows(extent: int, taps: int, stride: int, padding: int, dilation: int) -> Windows:
    """Along one axis, for each output position: the pixels that it sees, and the taps that meet them.

    >>> windows(extent=2, taps=3, stride=1, padding=1, dilation=1)
    [(slice(0, 2, 1), slice(1, 3, None)), (slice(0, 2, 1), slice(0, 2, None))]
    """
    found = []
    for start in range(-padding, extent + padding - dilation * (taps - 1), stride):
        first = max(0, -(start // dilation))  # rounded up
        stop = max(first, min(taps, -((start - extent) // dilation)))
        pixel = start + first * dilation
        found.append((slice(pixel, pixel + (stop - first) * dilation, dilation), slice(first, stop)))
    return found


def live_taps(extent: int, taps: int, stride: int, padding: int, dilation: int) -> tuple[slice, int]:
    """The taps along one axis that meet the picture, and the padding that they need.

    >>> live_taps(extent=1, taps=3, stride=1, padding=1, dilation=1)
    (slice(1, 2, None), 0)
    >>> live_taps(extent=8, taps=3, stride=1, padding=1, dilation=1)
    (slice(0, 3, None), 1)
    """
    everything = slice(0, taps), padding
    positions = windows(extent, taps, stride, padding, dilation)  # none if the kernel does not fit
    live = [seen for _, seen in positions if seen.stop > seen.start]
    if not live:
        return everything
    first, stop = min(seen.start for seen in live), max(seen.stop for seen in live)
    before = padding - first * dilation
    after = (len(positions) - 1) * stride - padding + (stop - 1) * dilation + 1 - extent
    # A convolution pads both sides alike; what it would round away at the far end by its stride may be more.
    if before < 0 or not after <= before < after + stride:
        return everything
    return slice(first, stop), before


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

"""Convolutions of images that are hardly larger than the kernel, where most of the work is on padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)
Windows = list[tuple[slice, slice]]


class TrimmedConv2d(nn.Conv2d):
    """A convolution that skips the taps that see only padding at every output position.

    A 28 x 28 image is a single pixel in the last stage of a ResNet-18. Only the centre of a padded 3 x 3 kernel sees
    it. Without the other eight taps the output is the same, their gradient is zero either way, and the layer needs a
    ninth of the work.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # A tap can be skipped only if the padding is zero, and a tensor subclass runs its own convolution.
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
    """`torch.conv2d` without the taps that see only padding, and with matrix products where that is faster."""
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


# Measured. With smaller batches or more positions, copying the weight takes longer than the matrix products save.
BATCH, POSITIONS = 64, 4


def by_position(input: Tensor, weight: Tensor, bias: Tensor | None, down: Windows, across: Windows) -> Tensor:
    """A convolution as one matrix product per output position: the pixels that it sees times the taps that meet them.

    down, across  the windows of the output's rows and columns

    Five of nine multiplications in a padded 3 x 3 convolution of 2 x 2 pixels are by zero; none are here, and the
    backward pass also consists of matrix products.
    """
    pixels = input.permute(0, 2, 3, 1).contiguous()  # channels last, so that a window is copied in long rows
    taps = weight.permute(2, 3, 1, 0).contiguous()
    outputs = [
        pixels[:, rows, columns].flatten(1) @ taps[tap_rows, tap_columns].flatten(0, 2)
        for rows, tap_rows in down
        for columns, tap_columns in across
    ]
    output = torch.stack(outputs, 1).unflatten(1, (len(down), len(across)))
    output = (output if bias is None else output + bias).permute(0, 3, 1, 2)
    # In the memory format of the convolution, because a model may take a `view` of it.
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
    """The taps along one axis that meet the image, and the padding that they need.

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
    # A convolution pads both sides equally. With a stride, it may ignore some padding at the far end.
    if before < 0 or not after <= before < after + stride:
        return everything
    return slice(first, stop), before


def trim(model: Model) -> Model:
    """Make the 2-D convolutions of a model skip the taps that see only padding, in place; return the model.

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

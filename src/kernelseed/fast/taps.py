"""Convolutions of images that are hardly larger than the kernel, where most of the work is on padding."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed.fast.costs import Costs, current_costs

Model = TypeVar("Model", bound=nn.Module)
Pair = tuple[int, ...]
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
    if isinstance(padding, str):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    found = live_convolution(input.shape[-2:], weight.shape[-2:], stride, padding, dilation)
    weight = weight[:, :, found.rows, found.columns]
    if groups == 1 and input.is_cpu and input.dim() == 4 and not torch.compiler.is_compiling():
        outputs, inputs = weight.shape[:2]
        whole, products = found.times(len(input), inputs, outputs, current_costs(), torch.is_grad_enabled())
        if products < whole:
            return by_position(input, weight, bias, found.down, found.across)
    return F.conv2d(input, weight, bias, stride, found.padding, dilation, groups)


@dataclass(frozen=True)
class LiveConvolution:
    """A convolution without the taps that see only padding."""

    pixels: Pair
    rows: slice
    columns: slice
    padding: Pair
    down: Windows
    across: Windows

    @property
    def positions(self) -> int:
        """The number of output positions of one image; 0 if the kernel does not fit."""
        return len(self.down) * len(self.across)

    @property
    def taps(self) -> int:
        """The number of taps that meet the image."""
        return (self.rows.stop - self.rows.start) * (self.columns.stop - self.columns.start)

    def times(self, images: int, inputs: int, outputs: int, costs: Costs, training: bool) -> tuple[float, float]:
        """What it costs as a library convolution, and as one matrix product per output position."""
        if not self.positions:
            return 0.0, math.inf
        taps, pixels, every = self.taps, math.prod(self.pixels), images * self.positions
        whole = costs.convolution_time(inputs, outputs, taps, images * pixels, every, training=training)
        seen = sum(r.stop - r.start for _, r in self.down) * sum(c.stop - c.start for _, c in self.across)
        # The image in another order, what each position sees of it, and outputs; each is read and written.
        moved = 2 * images * (inputs * (pixels + seen) + outputs * self.positions)
        # The taps in another order, what each position meets of them, and in training the sum of their gradients.
        moved += inputs * outputs * (7 * taps if training else 2 * taps + 2 * seen)
        calls = 4 * self.positions + 3
        return whole, images * seen * inputs * outputs * costs.product + costs.moving(moved) + calls * costs.call


def live_convolution(pixels: Any, taps: Any, stride: Any, padding: Any, dilation: Any) -> LiveConvolution:
    """What is left of a convolution of images of so many pixels; each argument is a number, or one for each axis."""
    find = _found.__wrapped__ if torch.compiler.is_compiling() else _found  # a compiler traces no cache
    return find(*(tuple(_pair(each)) for each in (pixels, taps, stride, padding, dilation)))


@functools.lru_cache(maxsize=4096)
def _found(pixels: Pair, taps: Pair, stride: Pair, padding: Pair, dilation: Pair) -> LiveConvolution:
    (rows, top), (columns, left) = (
        live_taps(*axis) for axis in zip(pixels, taps, stride, padding, dilation, strict=True)
    )
    kept = (rows.stop - rows.start, columns.stop - columns.start)
    down, across = (windows(*axis) for axis in zip(pixels, kept, stride, (top, left), dilation, strict=True))
    return LiveConvolution(pixels, rows, columns, (top, left), down, across)


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
    output = (output if bias is None else output + bias.to(output.dtype)).permute(0, 3, 1, 2)
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
    return (value, value) if isinstance(value, int) else value

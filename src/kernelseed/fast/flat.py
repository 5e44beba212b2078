"""Many tensors as slices of one flat tensor, and back, in few operations.

On a GPU a small operation takes as long as its launch, so a network's weights are drawn as one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from kernelseed.fast.traced import is_traced

T = TypeVar("T")


CACHED = 2**17
"""Elements that a CPU works on together: fewer take more operations, more leave its cache between two of them.

It is not critical: on a Zen 4 the time changes by about a tenth from 2^15 to 2^21, while single tensors take up to 1.6
times as long. `python benchmarks/bench.py --parts blocks` measures it.
"""


def in_blocks(items: Iterable[T], elements: Callable[[T], int], device: torch.device) -> list[list[T]]:
    """Divide items that stand for tensors into those to work on together: on a CPU, as many as its cache holds."""
    blocks: list[list[T]] = []
    room = 0
    for item in items:
        count = elements(item) if device.type == "cpu" else 0
        if not blocks or count > room:
            blocks.append([])
            room = CACHED
        blocks[-1].append(item)
        room -= count
    return blocks


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of all tensors, one after another; they have one dtype and device."""
    if _without_function():
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
    return _Flatten.apply(*tensors)


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape along a new first axis."""
    return torch.stack(list(tensors)) if _without_function() else _Stack.apply(*tensors)


def split(flat: Tensor, shapes: Sequence[torch.Size], swapped: Sequence[bool]) -> Sequence[Tensor]:
    """Views of these shapes; where `swapped`, the elements are stored with the first two axes swapped."""
    if _without_function():
        return _views(flat, shapes, swapped)
    return _Split.apply(flat, shapes, swapped)


def _without_function() -> bool:
    """Whether torch.compile or torch.func follows the operations, or no gradients are asked for."""
    following = is_traced()
    return following or not torch.is_grad_enabled()


def _views(flat: Tensor, shapes: Sequence[torch.Size], swapped: Sequence[bool]) -> tuple[Tensor, ...]:
    pieces = flat.split([shape.numel() for shape in shapes])
    return tuple(map(stored_as, pieces, shapes, swapped))


def stored_as(elements: Tensor, shape: torch.Size, swapped: bool) -> Tensor:
    """The elements as a tensor of this shape, stored with the first two axes swapped or as it is."""
    if not swapped:
        return elements if elements.shape == shape else elements.reshape(shape)
    return elements.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)


class _Flatten(torch.autograd.Function):
    """As separate operations, the backward pass would take two for each tensor and its view."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.shapes = [tensor.shape for tensor in tensors]
        return torch._utils._flatten_dense_tensors(tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return _views(grad, ctx.shapes, [False] * len(ctx.shapes))


class _Stack(torch.autograd.Function):
    """torch.stack's backward pass takes an operation for each tensor."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        return torch.stack(tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad.unbind()


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, shapes: Sequence[torch.Size], swapped: Sequence[bool]) -> tuple[Tensor, ...]:
        ctx.swapped = swapped
        return _views(flat, shapes, swapped)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        stored = [g.transpose(0, 1) if swap else g for g, swap in zip(grads, ctx.swapped, strict=True)]
        return flatten(stored), None, None

"""Backward passes that run once: a clear error for the second."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelseed.errors import GraphError
from kernelseed.fast.traced import is_traced


class _OnePass(torch.autograd.Function):
    """The identity. A second backward pass through it raises a clear error."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(tensors[0])
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        saved_tensors(ctx)
        return grads


def one_pass(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors, with a clear error if a backward pass finds their graph already freed."""
    if is_traced():
        return tensors
    return _OnePass.apply(*tensors)


def saved_tensors(ctx: Any) -> tuple[Tensor, ...]:
    """The tensors that the forward pass saved, or an error if an earlier backward pass has freed them."""
    try:
        saved: tuple[Tensor, ...] = ctx.saved_tensors
    except RuntimeError as error:
        if "second time" not in str(error):  # such as a parameter that was changed in place
            raise
        raise GraphError(
            "a backward pass reached the weights of this draw a second time, but the first one has freed their graph. "
            "Reentrant checkpointing does that: use checkpoint(..., use_reentrant=False). For two losses of one draw, "
            "add them, or call backward(retain_graph=True) on the first."
        ) from None
    return saved

"""Tensors that stand for a weight and run some layers in their own way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class StandIn(Tensor):
    """A tensor subclass with the shape of a weight. It runs `layers` itself; all other functions get `dense()`."""

    layers: ClassVar[Mapping[Any, Callable[..., Tensor]]]
    dense: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a layer whose weight this is in its own way, and any other function on the dense weight."""
        own = func in cls.layers and len(args) > 1 and isinstance(args[1], cls) and not isinstance(args[0], StandIn)
        run = cls.layers[func] if own else func

        def operand(weight: StandIn) -> Tensor:
            return weight if own and isinstance(weight, cls) else weight.dense()

        with torch._C.DisableTorchFunctionSubclass():
            args, kwargs = tree_map_only(StandIn, operand, (args, kwargs or {}))
            return run(*args, **kwargs)


def empty_of_shape(like: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of this shape that takes the memory of one number: what a stand-in is a subclass of."""
    return like.new_empty(1).expand(shape)

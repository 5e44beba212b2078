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
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if own:  # a layer has no tensors within its arguments, and to look for them takes as long as a small one
                args = [cls._operand(each) for each in args]
                return cls.layers[func](*args, **{name: cls._operand(each) for name, each in kwargs.items()})
            args, kwargs = tree_map_only(StandIn, lambda weight: weight.dense(), (args, kwargs))
            return func(*args, **kwargs)

    @classmethod
    def _operand(cls, argument: Any) -> Any:
        """What the own layers of this class get: those of other classes are dense."""
        return argument.dense() if isinstance(argument, StandIn) and not isinstance(argument, cls) else argument


def empty_of_shape(like: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of this shape that takes the memory of one number: what a stand-in is a subclass of."""
    return like.new_empty(1).expand(shape)

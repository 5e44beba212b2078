"""Several draws on the same inputs: one by one, or a small network's in one call by `torch.func.vmap`.

A small network spends its time on starting operations, and vmap starts them once for all draws. It computes the same.
Whatever it can't take runs one by one: modules with control flow that depends on values, with state, or with noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_flatten, tree_unflatten

from kernelseed.core.dropout import DropoutPass
from kernelseed.core.inputs import tensors_of
from kernelseed.core.network import Draw
from kernelseed.core.objective import call
from kernelseed.core.twin import call_with

SMALL = 2**20
"""Multiplications of a draw up to which starting its operations takes longer than they do."""
ONE_BY_ONE = (_ConvNd, nn.RNNBase)  # vmap makes slow grouped convolutions, and has no rule for recurrent layers


class Ensemble:
    """Call it with the inputs of a batch: it gives the output of each draw."""

    def __init__(self, draws: Sequence[Draw | DropoutPass]) -> None:
        self._draws = draws
        self._tensors = _stacked(draws)
        self._checked = False

    def __call__(self, x: Any) -> list[Any]:
        """The outputs, in the order of the draws."""
        if self._tensors is None or self._multiplications(x) > SMALL:
            return [call(draw, x) for draw in self._draws]
        if self._checked:
            return self._at_once(x)
        skeleton = self._draws[0].skeleton
        before = _state(skeleton)
        first = call(self._draws[0], x)
        outputs = self._tried(x) if before == _state(skeleton) else None
        self._checked = outputs is not None and _close(outputs[0], first)
        if outputs is not None and self._checked:
            return outputs
        self._tensors = None
        return [first, *(call(draw, x) for draw in self._draws[1:])]

    def _multiplications(self, x: Any) -> int:
        """Of one draw, roughly: every weight is used once at each position of the inputs."""
        assert self._tensors is not None
        positions = max((t.numel() // (t.shape[-1] if t.is_floating_point() else 1) for t in tensors_of(x)), default=1)
        return positions * sum(tensor[0].numel() for tensor in self._tensors.values())

    def _tried(self, x: Any) -> list[Any] | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # such as that of an operation without a rule, which would be slow
                return self._at_once(x)
        except Exception:  # whatever the module raises itself, it raises again one by one
            return None

    def _at_once(self, x: Any) -> list[Any]:
        assert self._tensors is not None
        skeleton = self._draws[0].skeleton

        def run(tensors: dict[str, Tensor]) -> Any:
            return call(lambda *args, **kwargs: call_with(skeleton, tensors, *args, **kwargs), x)

        leaves, kind = tree_flatten(torch.func.vmap(run)(self._tensors))
        return [tree_unflatten(own, kind) for own in zip(*(leaf.unbind() for leaf in leaves), strict=True)]


def _stacked(draws: Sequence[Draw | DropoutPass]) -> dict[str, Tensor] | None:
    """The tensors of the draws, stacked by name; None if the draws can't run together, or would not gain by it."""
    first = draws[0]
    if (
        len(draws) < 2
        or not isinstance(first, Draw)
        or any(isinstance(m, ONE_BY_ONE) for m in first.skeleton.modules())
    ):
        return None
    own = [draw.operands() for draw in draws if isinstance(draw, Draw) and draw.skeleton is first.skeleton]
    if len(own) < len(draws) or any(tensors.keys() != own[0].keys() for tensors in own):
        return None
    plain = all(type(tensor) is Tensor for tensors in own for tensor in tensors.values())
    if not plain or sum(tensor.numel() for tensor in own[0].values()) > SMALL:
        return None
    return {name: torch.stack([tensors[name] for tensors in own]) for name in own[0]}


def _state(module: nn.Module) -> list[Any]:
    """What a forward may change on a module, to be compared: its attributes, and the contents of tensors and lists."""
    found: list[Any] = []
    for m in module.modules():
        for value in (*vars(m).values(), *m._buffers.values(), *m._parameters.values()):
            found.append((id(value), value._version if isinstance(value, Tensor) else None))
            if isinstance(value, (list, dict, set)):
                found.append(len(value))
    return found


def _close(one: Any, other: Any) -> bool:
    """Whether two outputs are the same up to rounding."""
    (a, kind), (b, other_kind) = tree_flatten(one), tree_flatten(other)
    if kind != other_kind:
        return False
    return all(
        x.dtype == y.dtype and torch.allclose(x.double(), y.double(), rtol=1e-3, atol=1e-5, equal_nan=True)
        for x, y in zip(a, b, strict=True)
    )

"""Several draws on the same inputs: one by one, or a small network's in one pass.

A small network spends its time on starting operations, and one pass starts them once for all draws. A network of
well-known layers takes one product for each of them; others run by `torch.func.vmap`. Both compute the same. Whatever
vmap can't take runs one by one: modules with control flow that depends on values, with state, or with noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_flatten, tree_unflatten

from kernelseed.core.dropout import DropoutPass
from kernelseed.core.inputs import SameInputs, tensors_of
from kernelseed.core.known_layers import KnownLayers
from kernelseed.core.network import Draw
from kernelseed.core.objective import call
from kernelseed.core.slices import Slices, Stack, StackedFactors
from kernelseed.core.twin import call_with
from kernelseed.fast import current_costs

CALLS_A_MODULE = 3
"""What is started for a module in a draw: its twin, its operation, and the search for what it has changed."""
ONE_BY_ONE = (_ConvNd, nn.RNNBase)  # vmap makes slow grouped convolutions, and has no rule for recurrent layers


class EachDraw:
    """Call it with the inputs of a batch: it gives the output of each draw."""

    def __init__(self, draws: Sequence[Draw | DropoutPass]) -> None:
        self._draws = draws
        skeleton = draws[0].skeleton
        names = {module: name for name, module in skeleton.named_modules()}
        self._starting = len(names) * CALLS_A_MODULE * current_costs().call
        """How long a draw takes that computes hardly anything."""
        self._tensors = _stacked(draws, names, self._starting)
        self._layers = None if self._tensors is None else KnownLayers.of(skeleton, names, self._tensors)
        self._checked, self._run = False, SameInputs()

    def __call__(self, x: Any) -> list[Any]:
        """The outputs, in the order of the draws."""
        if self._tensors is None or not self._gains(x):
            return self._one_by_one(x)
        layers = self._layers if type(x) is Tensor else None
        if layers is not None or self._checked:
            # Whatever a module raises itself, it raises again one by one.
            return self._tried(x, layers) or self._one_by_one(x)
        skeleton = self._draws[0].skeleton
        before = _state(skeleton)
        first = self._run(self._draws[0], x)
        untouched = before is not None and before == _state(skeleton) and not self._run.written
        outputs = self._tried(x, None) if untouched else None
        self._checked = outputs is not None and _close(outputs[0], first)
        if outputs is not None and self._checked:
            return outputs
        self._tensors = None
        return [first, *(self._run(draw, x) for draw in self._draws[1:])]

    def _one_by_one(self, x: Any) -> list[Any]:
        return [self._run(draw, x) for draw in self._draws]

    def _gains(self, x: Any) -> bool:
        """Whether starting a draw takes longer than writing its outputs, which leave the cache if draws run at once.

        Roughly: every weight gives its outputs at each position of the inputs.
        """
        assert self._tensors is not None
        positions = max((_positions(t) for t in tensors_of(x)), default=1)
        outputs = sum(stack.shape[1] for stack in self._tensors.values() if len(stack.shape) > 1)
        return self._starting > current_costs().moving(positions * outputs)

    def _tried(self, x: Any, layers: KnownLayers | None) -> list[Any] | None:
        assert self._tensors is not None
        try:
            if layers is not None:
                return list(layers(x).unbind())
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # such as that of an operation without a rule, which would be slow
                return self._by_vmap(x, {name: _dense(stack) for name, stack in self._tensors.items()})
        except Exception:
            return None

    def _by_vmap(self, x: Any, tensors: dict[str, Tensor]) -> list[Any]:
        skeleton = self._draws[0].skeleton

        def run(own: dict[str, Tensor]) -> Any:
            return call(lambda *args, **kwargs: call_with(skeleton, own, *args, **kwargs), x)

        leaves, kind = tree_flatten(torch.func.vmap(run)(tensors))
        return [tree_unflatten(own, kind) for own in zip(*(leaf.unbind() for leaf in leaves), strict=True)]


def _stacked(
    draws: Sequence[Draw | DropoutPass], modules: Iterable[nn.Module], starting: float
) -> dict[str, Stack] | None:
    """Their tensors or factors, stacked by name; None if the draws can't run together, or would not gain by it."""
    first = draws[0]
    if (
        len(draws) < 2
        or not isinstance(first, Draw)
        or any(isinstance(m, ONE_BY_ONE) or _has_hooks(m) for m in modules)
    ):
        return None
    if any(not isinstance(draw, Draw) or draw.skeleton is not first.skeleton for draw in draws):
        return None
    if (made := _made_at_once(draws)) is not None:
        return made
    own = [draw.operands() for draw in draws if isinstance(draw, Draw)]
    if not own[0] or any(tensors.keys() != own[0].keys() for tensors in own):
        return None
    plain = all(type(tensor) is Tensor for tensors in own for tensor in tensors.values())
    numbers = sum(tensor.numel() for tensor in own[0].values())
    if not plain or current_costs().moving(numbers) > starting:
        return None
    return {name: torch.stack([tensors[name] for tensors in own]) for name in own[0]}


def _made_at_once(draws: Sequence[Any]) -> dict[str, Stack] | None:
    """The stacks of draws that are slices of them, in their order and complete."""
    first = draws[0].samples
    if not isinstance(first, Slices) or (whole := first.stacks.whole) is None:
        return None
    for i, draw in enumerate(draws):
        own = draw.samples
        if not isinstance(own, Slices) or own.stacks is not first.stacks or own.index != i or draw.buffers:
            return None
    complete = all(len(stack) == len(draws) for stack in whole.values())
    return whole | {alias: whole[name] for alias, name in draws[0].aliases.items()} if whole and complete else None


def _positions(t: Tensor) -> int:
    """At how many places a layer would see it: in its rows, or, where its numbers are indices, in each of them."""
    return t.numel() // max(1, t.shape[-1]) if t.is_floating_point() and t.dim() else t.numel()


def _dense(stack: Stack) -> Tensor:
    return stack.dense if isinstance(stack, StackedFactors) else stack


def _has_hooks(module: nn.Module) -> bool:
    """Whether somebody looks at what it gets or gives: that is a draw's then, and not that of all."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _state(module: nn.Module) -> list[Any] | None:
    """What a forward may change on a module, to be compared: its attributes, and the contents of tensors and lists.

    None where nobody counts: tensors that were made in inference mode.
    """
    found: list[Any] = []
    for m in module.modules():
        for value in (*vars(m).values(), *m._buffers.values(), *m._parameters.values()):
            if isinstance(value, Tensor) and value.is_inference():
                return None
            found.append((id(value), value._version if isinstance(value, Tensor) else None))
            if isinstance(value, (list, dict, set)):
                found.append([id(part) for part in (value.values() if isinstance(value, dict) else value)])
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

"""The weights of many draws without graph and KL, for prediction: a small network's draws are made at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from kernelseed.core.distributions import Decoded, Gaussian
from kernelseed.core.joint import OfGaussians
from kernelseed.core.rho_gaussian import RhoGaussian
from kernelseed.core.slices import Cut, Slices, Stack, StackedFactors, StackedSample, Stacks, stacked_in_shape
from kernelseed.core.weights.gaussian_factors import FactorGaussians
from kernelseed.fast import Numbers, current_costs, draw_values, is_traced, supports

CALLS_A_WEIGHT = 3
"""What is started for a weight in a draw: its noise, its place in memory, its sample."""


class Values:
    """Decoded weights that are Gaussians in float32 on the CPU, as what a draw of their values needs."""

    def __init__(self, decoded: Mapping[str, Decoded]) -> None:
        self._decoded = decoded
        self._fixed = {name: weight.at_mean().values_only() for name, weight in decoded.items() if weight.fixed}
        drawn: Mapping[str, Any] = decoded  # all of them are made of Gaussians, if `supports` says so
        self._gaussians: dict[tuple[int, int], Gaussian | RhoGaussian] = {
            (index, part): gaussian
            for index, (name, weight) in enumerate(drawn.items())
            if name not in self._fixed
            for part, gaussian in enumerate(weight.gaussians)
        }
        self._numbers = [_numbers(gaussian, *name) for name, gaussian in self._gaussians.items()]

    @staticmethod
    def supports(decoded: Mapping[str, Decoded]) -> bool:
        """Whether all weights are such, and there are kernels; others are drawn by methods of their own."""

        def simple(weight: Decoded) -> bool:
            if weight.fixed:
                return True
            # The protocol is asked last: that takes longer than drawing a small weight.
            if not isinstance(weight, (Gaussian, RhoGaussian, FactorGaussians)) and not isinstance(weight, OfGaussians):
                return False
            stored = [tensor for gaussian in weight.gaussians for tensor in gaussian.stored()]
            drawn = not any(gaussian.fixed for gaussian in weight.gaussians)
            return drawn and all(tensor.is_cpu for tensor in stored) and supports(*stored)

        return not is_traced() and all(map(simple, decoded.values()))

    def draws(self, keys: Tensor) -> Iterator[Slices]:
        """The samples by name of one draw for each key."""
        numbers = sum(each.mean.numel() for each in self._numbers)
        costs = current_costs()
        at_once = len(self._numbers) * CALLS_A_WEIGHT * costs.call > costs.moving(numbers)
        for some in [keys] if at_once else keys.split(1):
            drawn = zip(self._gaussians.items(), draw_values(self._numbers, some), strict=True)
            parts = {name: stacked_in_shape(flat, each.shape, each.swapped) for (name, each), flat in drawn}
            stacks = Stacks({name: self._stack(index, name, parts) for index, name in enumerate(self._decoded)})
            yield from (Slices(stacks, i) for i in range(len(some)))

    def _stack(self, index: int, name: str, drawn: Mapping[tuple[int, int], Tensor]) -> Stack | Cut:
        """What the samples of a weight are cut from."""
        if (fixed := self._fixed.get(name)) is not None:
            return lambda _: fixed
        weight: Any = self._decoded[name]
        own = [drawn[index, part] for part in range(len(weight.gaussians))]
        if isinstance(weight, (Gaussian, RhoGaussian)):
            return own[0]
        if isinstance(weight, FactorGaussians):
            return StackedFactors(own[0], own[1], weight.shape)
        return lambda draw: weight.joined([StackedSample(stack, draw) for stack in own]).values_only()


def _numbers(gaussian: Gaussian | RhoGaussian, weight: int, part: int) -> Numbers:
    mean, spread = (tensor.detach().contiguous() for tensor in gaussian.stored()[:2])
    return Numbers(mean, spread, isinstance(gaussian, RhoGaussian), weight, part)

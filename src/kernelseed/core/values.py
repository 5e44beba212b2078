"""The weights of many draws without graph and KL, for prediction: a small network's draws are made at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernelseed.core.distributions import Decoded, Gaussian, Sample
from kernelseed.core.joint import OfGaussians
from kernelseed.core.rho import RhoGaussian
from kernelseed.core.weights.gaussian_factors import FactorGaussians
from kernelseed.fast import (
    Numbers,
    ProductWeight,
    current_costs,
    draw_values,
    fold,
    germinate_matrix,
    is_transposed,
    supports,
    thin_is_cheaper,
)

CALLS = 3
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

        following = torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None
        return not following and all(map(simple, decoded.values()))

    def draws(self, keys: Tensor) -> Iterator[dict[str, Sample]]:
        """The samples by name of one draw for each key."""
        numbers = sum(each.mean.numel() for each in self._numbers)
        costs = current_costs()
        at_once = len(self._numbers) * CALLS * costs.call > costs.moving(numbers)
        for some in [keys] if at_once else keys.split(1):
            drawn = zip(self._gaussians.items(), draw_values(self._numbers, some), strict=True)
            stacks = {name: _in_shape(flat, each.shape, each.swapped) for (name, each), flat in drawn}
            ways = {name: self._way(index, name, stacks) for index, name in enumerate(self._decoded)}
            for i in range(len(some)):
                yield {name: sample(i) for name, sample in ways.items()}

    def _way(self, index: int, name: str, stacks: Mapping[tuple[int, int], Tensor]) -> Callable[[int], Sample]:
        """The sample of a weight for each number of a draw."""
        if (fixed := self._fixed.get(name)) is not None:
            return lambda _: fixed
        weight: Any = self._decoded[name]
        own = [stacks[index, part] for part in range(len(weight.gaussians))]
        if isinstance(weight, (Gaussian, RhoGaussian)):
            return partial(StackedSample, own[0])
        if isinstance(weight, FactorGaussians):
            return partial(StackedProduct, StackedFactors(own[0], own[1], weight.shape))
        return lambda draw: weight.joined([StackedSample(stack, draw) for stack in own]).values_only()


def _numbers(gaussian: Gaussian | RhoGaussian, weight: int, part: int) -> Numbers:
    mean, spread = (tensor.detach().contiguous() for tensor in gaussian.stored()[:2])
    return Numbers(mean, spread, isinstance(gaussian, RhoGaussian), weight, part)


def _in_shape(flat: Tensor, shape: torch.Size, swapped: bool) -> Tensor:
    """The elements of several weights (draws, ...) in their shape."""
    if not swapped:
        return flat.view(len(flat), *shape)
    values = flat.view(len(flat), shape[1], shape[0], *shape[2:]).transpose(1, 2)
    return values if len(shape) == 2 else values.contiguous()  # products take either, convolutions lose


class StackedSample(Sample):
    """A weight that is a slice of those of several draws. It has no KL."""

    noise = None
    fixed = True

    def __init__(self, whole: Tensor, index: int) -> None:
        self.whole, self.index = whole, index

    @property
    def value(self) -> Tensor:
        """The weight."""
        return self.whole[self.index]

    @property
    def source(self) -> Gaussian:
        """The weight, without a standard deviation."""
        return Gaussian(self.value, None)

    def values_only(self) -> Sample:
        """Itself."""
        return self


@dataclass(frozen=True, eq=False)
class StackedFactors:
    """The factors of a weight in several draws, germinators (draws, C_f, rank) and seeds (draws, rank, C_F, k...)."""

    germinators: Tensor
    seeds: Tensor
    weight_shape: torch.Size

    def __len__(self) -> int:
        return len(self.germinators)

    @property
    def shape(self) -> torch.Size:
        """The shape of the weights, (draws, ...)."""
        return torch.Size((len(self), *self.weight_shape))

    @functools.cached_property
    def dense(self) -> Tensor:
        """The weights of all draws."""
        product = germinate_matrix(self.germinators, self.seeds)
        return _in_shape(product, self.weight_shape, is_transposed(self.weight_shape))

    def matrices(self, rows: int) -> tuple[Tensor, ...]:
        """What so many rows of each draw are multiplied with, one after another: both factors if that costs less.

        Multiplications decide, and not calls, which are made once for all draws.
        """
        if not thin_is_cheaper(self.weight_shape, self.germinators.shape[2], rows, rows, training=True):
            return (self.dense.mT,)
        both = self.germinators, self.seeds
        return both if is_transposed(self.weight_shape) else (self.seeds.mT, self.germinators.mT)


class StackedProduct(Sample):
    """A weight that is the product of slices of such factors, and runs as two thin layers where that is cheaper."""

    noise = None
    fixed = True

    def __init__(self, whole: StackedFactors, index: int) -> None:
        self.whole, self.index = whole, index

    @functools.cached_property
    def value(self) -> Tensor:
        """The dense weight."""
        return fold(germinate_matrix(*self._factors), self.whole.weight_shape)

    @property
    def source(self) -> Gaussian:
        """The dense weight, without a standard deviation."""
        return Gaussian(self.value, None)

    @property
    def operand(self) -> Tensor:
        """A tensor subclass that runs as two layers, or as their product if that is cheaper."""
        return ProductWeight.of(*self._factors, self.whole.weight_shape, lambda: self.value)

    @property
    def _factors(self) -> tuple[Tensor, Tensor]:
        return self.whole.germinators[self.index], self.whole.seeds[self.index]

    def values_only(self) -> Sample:
        """Itself."""
        return self

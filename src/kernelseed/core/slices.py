"""Weights of several draws that were made at once: stacks of them, and draws that are slices of the stacks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelseed.core.distributions import Gaussian, Sample
from kernelseed.fast import ProductWeight, fold, germinate_matrix, is_transposed, thin_is_cheaper


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
        return stacked_in_shape(product, self.weight_shape, is_transposed(self.weight_shape))

    def matrices(self, rows: int) -> tuple[Tensor, ...]:
        """What so many rows of each draw are multiplied with, one after another: both factors if that costs less.

        Multiplications decide, and not calls, which are made once for all draws.
        """
        if not thin_is_cheaper(self.weight_shape, self.germinators.shape[2], rows, rows, training=True):
            return (self.dense.mT,)
        both = self.germinators, self.seeds
        return both if is_transposed(self.weight_shape) else (self.seeds.mT, self.germinators.mT)


Stack = Tensor | StackedFactors
"""A weight of several draws, (draws, ...), or its factors."""
Cut = Callable[[int], Sample]
"""What makes the sample of a weight in a draw of this number."""


class Stacks:
    """The weights of several draws that were made at once, by name."""

    def __init__(self, by_name: Mapping[str, Stack | Cut]) -> None:
        self.by_name = by_name

    @functools.cached_property
    def whole(self) -> dict[str, Stack] | None:
        """The stacks, unless some weight has none."""
        found = {name: stack for name, stack in self.by_name.items() if isinstance(stack, (Tensor, StackedFactors))}
        return found if len(found) == len(self.by_name) else None


class Slices(Mapping[str, Sample]):
    """The samples of one of several draws, each cut out when it is asked for: where draws run at once, nobody asks."""

    def __init__(self, stacks: Stacks, index: int) -> None:
        self.stacks, self.index = stacks, index
        self._cut: dict[str, Sample] = {}

    def __getitem__(self, name: str) -> Sample:
        if name not in self._cut:
            stack = self.stacks.by_name[name]
            if isinstance(stack, Tensor):
                self._cut[name] = StackedSample(stack, self.index)
            elif isinstance(stack, StackedFactors):
                self._cut[name] = StackedProduct(stack, self.index)
            else:
                self._cut[name] = stack(self.index)
        return self._cut[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stacks.by_name)

    def __len__(self) -> int:
        return len(self.stacks.by_name)


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


def stacked_in_shape(flat: Tensor, shape: torch.Size, swapped: bool) -> Tensor:
    """The elements of several weights (draws, ...) in their shape."""
    if not swapped:
        return flat.view(len(flat), *shape)
    values = flat.view(len(flat), shape[1], shape[0], *shape[2:]).transpose(1, 2)
    return values if len(shape) == 2 else values.contiguous()  # products take either, convolutions lose

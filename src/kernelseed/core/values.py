"""The weights of many draws without graph and KL, for prediction: a small network's draws are made at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelseed.core.distributions import Decoded, Gaussian, Sample
from kernelseed.core.joint import OfGaussians
from kernelseed.core.rho import RhoGaussian
from kernelseed.fast import current_costs, deviations, draw_values, supports

CALLS = 3
"""What is started for a weight in a draw: its noise, its place in memory, its sample."""


class Values:
    """Decoded weights that are Gaussians in float32 on the CPU, as what a draw of their values needs."""

    def __init__(self, decoded: Mapping[str, Decoded]) -> None:
        self._decoded = decoded
        self._fixed = {name: weight.at_mean().values_only() for name, weight in decoded.items() if weight.fixed}
        drawn: Mapping[str, Any] = decoded  # all of them are made of Gaussians, if `supports` says so
        self._parts = {
            (index, part): _Moments.of(gaussian)
            for index, (name, weight) in enumerate(drawn.items())
            if name not in self._fixed
            for part, gaussian in enumerate(weight.gaussians)
        }

    @staticmethod
    def supports(decoded: Mapping[str, Decoded]) -> bool:
        """Whether all weights are such, and there are kernels; others are drawn by methods of their own."""

        def simple(weight: Decoded) -> bool:
            if weight.fixed:
                return True
            if not isinstance(weight, (Gaussian, RhoGaussian)) and not isinstance(weight, OfGaussians):
                return False
            stored = [tensor for gaussian in weight.gaussians for tensor in gaussian.stored()]
            drawn = not any(gaussian.fixed for gaussian in weight.gaussians)
            return drawn and all(tensor.is_cpu for tensor in stored) and supports(*stored)

        following = torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None
        return not following and all(map(simple, decoded.values()))

    def draws(self, keys: Tensor) -> Iterator[dict[str, Sample]]:
        """The samples by name of one draw for each key."""
        numbers = sum(len(moments.mean) for moments in self._parts.values())
        costs = current_costs()
        at_once = len(self._parts) * CALLS * costs.call > costs.moving(numbers)
        for some in [keys] if at_once else keys.split(1):
            stacks = {name: moments.values(some, *name) for name, moments in self._parts.items()}
            for i in range(len(some)):
                yield {name: self._sample(index, name, stacks, i) for index, name in enumerate(self._decoded)}

    def _sample(self, index: int, name: str, stacks: Mapping[tuple[int, int], Tensor], draw: int) -> Sample:
        if (fixed := self._fixed.get(name)) is not None:
            return fixed
        weight: Any = self._decoded[name]
        if isinstance(weight, (Gaussian, RhoGaussian)):
            return StackedSample(stacks[index, 0], draw)
        parts = [StackedSample(stacks[index, part], draw) for part in range(len(weight.gaussians))]
        sample: Sample = weight.joined(parts)
        return sample.values_only()


@dataclass(frozen=True, eq=False)
class _Moments:
    """Mean and standard deviation of a Gaussian, flat, in the order of the noise."""

    mean: Tensor
    std: Tensor
    shape: torch.Size
    swapped: bool

    @classmethod
    def of(cls, gaussian: Gaussian | RhoGaussian) -> _Moments:
        mean, spread = (tensor.detach().reshape(-1).contiguous() for tensor in gaussian.stored()[:2])
        std = deviations(spread) if isinstance(gaussian, RhoGaussian) else spread
        return cls(mean, std, gaussian.shape, gaussian.swapped)

    def values(self, keys: Tensor, weight: int, part: int) -> Tensor:
        """The values for each key, (draws, *shape)."""
        flat = draw_values(self.mean, self.std, keys, weight, part)
        if not self.swapped:
            return flat.view(len(keys), *self.shape)
        values = flat.view(len(keys), self.shape[1], self.shape[0], *self.shape[2:]).transpose(1, 2)
        return values if len(self.shape) == 2 else values.contiguous()  # products take either, convolutions lose


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

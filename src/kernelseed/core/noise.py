"""The noise of a draw: standard normals that depend only on a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelseed.core.seeds import generator_for
from kernelseed.fast import philox


@dataclass(frozen=True, eq=False)
class Noise:
    """A value that always gives the same numbers. Each weight of a network, and each part of a weight, has its own.

    On the CPU the numbers come from Philox4x32, with or without a C compiler. Other devices use their own generator,
    seeded by the same key and, for weights that are drawn together, by the first of them; compiled code there uses the
    device's default generator.

    >>> noise = Noise.new(torch.Generator().manual_seed(0))
    >>> torch.equal(noise.normal((2, 3)), noise.normal((2, 3)))
    True
    >>> torch.equal(noise.normal((2, 3)), noise.for_part(1).normal((2, 3)))
    False
    """

    key: Tensor
    """64 random bits: two int32 on the CPU."""
    weight: int = 0
    part: int = 0

    @classmethod
    def new(cls, generator: torch.Generator | None = None) -> Noise:
        """Noise with a key from torch's generator, so that a seed determines every draw."""
        return cls(_random_words((2,), generator))

    @staticmethod
    def keys(count: int, generator: torch.Generator | None = None) -> Tensor:
        """The keys of the next draws, (count, 2): those that one after another would have."""
        return _random_words((count, 2), generator)

    def for_weight(self, index: int) -> Noise:
        """The noise of one weight of a network."""
        return replace(self, weight=index)

    def for_part(self, index: int) -> Noise:
        """The noise of one part, for distributions that need several independent tensors of noise."""
        return replace(self, part=index)

    @property
    def stream(self) -> tuple[Tensor, int, int]:
        """Its key, weight and part, as the kernels take them."""
        return self.key, self.weight, self.part

    def normal(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Standard normals of this shape, made in float32."""
        return normals([self], [torch.Size(shape).numel()], dtype, device).view(shape)


def _random_words(shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    device = "cpu" if generator is None else generator.device
    words = torch.randint(-(2**31), 2**31, shape, generator=generator, device=device, dtype=torch.int64)
    return words.to("cpu", torch.int32)


def normals(noises: Sequence[Noise], counts: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Standard normals for weights that are drawn together, one after another; all noises have the same key."""
    device = torch.device(device)
    key = noises[0].key
    if device.type == "cpu":
        streams = [noise.weight for noise in noises], [noise.part for noise in noises]
        return philox.normals(counts, key, *streams).to(dtype)
    count = sum(counts)
    if device.type == "meta" or torch.compiler.is_compiling():  # a compiled graph has one generator per device
        return torch.randn(count, dtype=dtype, device=device)
    # The first stands for all: a device that waits for launches makes the numbers in one.
    generator = generator_for("noise", *key.tolist(), noises[0].weight, noises[0].part, device=device)
    return torch.randn(count, generator=generator, dtype=dtype, device=device)

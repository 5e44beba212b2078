"""The values of many draws from Gaussians, by the C kernels, for float32 tensors on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kernelseed.fast import kernels


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers to draw, contiguous in the order of the noise, and which of a draw's noise is theirs."""

    mean: Tensor
    spread: Tensor
    """Their rhos or their standard deviations."""
    has_rhos: bool
    weight: int
    part: int


def draw_values(numbers: Sequence[Numbers], keys: Tensor) -> list[Tensor]:
    """mean + std * normals of all of them for each of the keys (draws, 2), each as (draws, n).

    The noise of a draw goes from the cache into the sum, where two operations would write and read it again.
    """
    values = [each.mean.new_empty(len(keys), each.mean.numel()) for each in numbers]
    table: list[int] = []  # the struct `numbers` of kernels.c
    for each, to in zip(numbers, values, strict=True):
        assert each.mean.is_contiguous()
        assert each.spread.is_contiguous()
        table += (each.mean.numel(), each.has_rhos, each.weight, each.part)
        table += (each.mean.data_ptr(), each.spread.data_ptr(), to.data_ptr())
    kernels.call("ks_draws", len(numbers), (ctypes.c_int64 * len(table))(*table), len(keys), keys)
    return values

"""The values of many draws from Gaussians, by the C kernels, for flat float32 tensors on the CPU."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernelseed.fast import kernels


def deviations(rho: Tensor) -> Tensor:
    """softplus(rho), never exactly zero."""
    std = torch.empty_like(rho)
    kernels.call("ks_deviations", len(rho), rho, std)
    return std


def draw_values(mean: Tensor, std: Tensor, keys: Tensor, weight: int, part: int) -> Tensor:
    """mean + std * normals for each of the keys (draws, 2), as (draws, n).

    The noise of a draw goes from the cache into the sum, where two operations would write and read it again.
    """
    values = mean.new_empty(len(keys), len(mean))
    stream = ctypes.c_uint32(weight), ctypes.c_uint32(part)
    kernels.call("ks_draws", len(mean), len(keys), mean, std, keys, *stream, values)
    return values

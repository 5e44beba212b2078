"""Normal noise by counter: element i of a stream is a function of the stream's key and of i, and of nothing else.

torch's CPU generator makes normals one after another, in one thread, at seven nanoseconds each: as long as everything
else that a draw does. Here two rounds of a 32-bit integer hash make the bits and the Box-Muller transform the normals,
both in vectorised tensor operations that fuse with what uses them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def new_key(generator: torch.Generator | None = None) -> Tensor:
    """The key of a stream: 62 random bits, from torch's generator, so that a seed fixes every draw."""
    return torch.randint(-(2**31), 2**31, (2,), generator=generator, dtype=torch.int64).to(torch.int32)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32 bits in which every input bit flips every output bit with a probability close to a half.

    The constants are the least biased ones of the form that Wellons' search found ("lowbias32").
    """
    # A signed shift copies the sign, so the bits that it brings in are masked away.
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -2073319285  # 0x846CA68B
    return x ^ ((x >> 16) & 0xFFFF)


def uniform_bits(index: Tensor, key: Tensor) -> Tensor:
    """32 random bits for each index (int32)."""
    return _mix(_mix(index ^ key[0]) + key[1])


def normal_pairs(index: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent standard normals for each index (int32), which must stay below 2^30."""
    first, second = uniform_bits(index * 2, key), uniform_bits(index * 2 + 1, key)
    # 31 bits for the radius: in float32 small numbers keep their bits, so the tail reaches 6.6 standard deviations.
    radius = torch.sqrt(-2 * torch.log(((first & 0x7FFFFFFF).float() + 0.5) * 2.0**-31))
    angle = second.float() * (math.pi * 2.0**-31)
    return radius * torch.cos(angle), radius * torch.sin(angle)

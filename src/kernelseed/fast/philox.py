"""Noise by counting: standard normals that are a function of a key and of their place, from the generator Philox4x32.

Philox (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011) turns a counter into random
words by ten rounds of multiplication; seven are enough to pass TestU01's BigCrush. A number depends on the key and its
counter alone. So any part of a stream can be made by itself, by any number of threads, and made again for a gradient.

A stream is named by the 64 bits of `key` and two numbers of 32 bits: the `weight` that the noise is for, and the `part`
of it. Its normals come in blocks of 2,048. Counter j of block i holds the number 512 i + j in two words, then weight and
part. Its four random words give two pairs of normals by Box and Muller, at places j, 512 + j, 1024 + j and 1536 + j.

kernels.c holds the same in C. Where that can't be had, torch's operations make the same stream.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from kernelseed.fast import kernels

ROUNDS = 10
COUNTERS = 512
BLOCK = 4 * COUNTERS
WORD = 0xFFFFFFFF
# Blocks that torch's operations make together: few enough to stay in cache, enough to be shared by threads.
CHUNK = 128


def philox4x32(counter: Tensor, key: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Random words for counters of shape (..., 4) and a key of shape (2,): all of them int64 that hold 32 bits."""
    x0, x1, x2, x3 = counter.unbind(-1)
    words = _rounds(x0, x1, x2, x3, _round_keys(key, rounds))
    return torch.stack([word & WORD for word in words], -1)


def _round_keys(key: Tensor, rounds: int) -> list[tuple[Tensor, Tensor]]:
    """Two words for each round. Like all that follows they are int64 of which the lower 32 bits count."""
    return [(key[0] + number * 0x9E3779B9, key[1] + number * 0xBB67AE85) for number in range(rounds)]


def _rounds(
    x0: Tensor, x1: Tensor, x2: Tensor, x3: Tensor, keys: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    for key0, key1 in keys:
        p, q = (x0 & WORD) * 0xD2511F53, (x2 & WORD) * 0xCD9E8D57
        x0, x1, x2, x3 = (q >> 32) ^ x1 ^ key0, q, (p >> 32) ^ x3 ^ key1, p
    return x0, x1, x2, x3


def _pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent standard normals from two random words, by Box and Muller."""
    # 31 bits: in float32 small numbers keep theirs, so the tail reaches 6.6 standard deviations.
    radius = (((a & WORD) >> 1).float() + 0.5).mul_(2.0**-31).log_().mul_(-2).sqrt_()
    # In kernels.c the top two bits are the quarter turn, backwards, and the others an angle within [-pi/4, pi/4).
    # Here both are one number within [-2^31, 2^31), for the angle within [-pi, pi).
    turn = (((b ^ 0xC0000000) + 0xA0000000) & WORD) - 0x80000000
    angle = turn.float().mul_(math.pi * 2.0**-31)
    return radius * angle.cos(), radius * angle.sin()


def _plain(n: int, key: Tensor, weight: int, part: int) -> Tensor:
    """The stream by torch's operations."""
    blocks = -(-n // BLOCK)
    noise = torch.empty(blocks, 4, COUNTERS, dtype=torch.float32, device="cpu")
    keys = _round_keys(key.long(), ROUNDS)
    names = torch.tensor([weight, part], device="cpu")
    for first in range(0, blocks, CHUNK):
        last = min(first + CHUNK, blocks)
        number = torch.arange(first * COUNTERS, last * COUNTERS, device="cpu").view(-1, COUNTERS)
        w0, w1, w2, w3 = _rounds(number, number >> 32, names[0], names[1], keys)
        torch.stack((*_pair(w0, w1), *_pair(w2, w3)), 1, out=noise[first:last])
    return noise.view(-1)[:n]


def normal(n: int, key: Tensor, weight: int = 0, part: int = 0) -> Tensor:
    """The first n normals of a stream, in float32 on the CPU. `key` is an int32 tensor of two elements.

    torch's CPU generator makes normals one after another, in one thread, and takes longer than all the rest of a draw.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:
        return _operation(n, key, weight, part)
    if kernels.library() is None:
        return _plain(n, key, weight, part)
    noise = torch.empty(n, dtype=torch.float32, device="cpu")
    kernels.call("ks_noise", n, key, ctypes.c_uint32(weight), ctypes.c_uint32(part), noise)
    return noise


# For torch.compile and torch.func a stream is one operation. Its hundred parts in the graph of each weight would take a
# compiler minutes for a ResNet, and run slower.
_SCHEMA = "(SymInt n, Tensor key, SymInt weight, SymInt part) -> Tensor"
_operation = torch.library.custom_op("kernelseed::normal", normal, mutates_args=(), schema=_SCHEMA)


@_operation.register_fake
def _(n: int, key: Tensor, weight: int, part: int) -> Tensor:
    return torch.empty(n, dtype=torch.float32, device="cpu")


@_operation.register_vmap
def _(info: object, in_dims: tuple[int, ...], n: int, key: Tensor, weight: int, part: int) -> tuple[Tensor, int]:
    return torch.stack([normal(n, each, weight, part) for each in key.movedim(in_dims[1], 0)]), 0

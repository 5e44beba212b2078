"""Noise by counting: standard normals as a function of a key and their place, from the generator Philox4x32.

Philox (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011) turns a counter into random
words by ten rounds of multiplication. It passes all tests of TestU01's BigCrush, and 7 rounds would. A number depends on
nothing but key and counter: any part of a stream can be made alone, in any order and by any number of threads, and made
again when a gradient needs it.

A stream is named by 64 bits of `key` and by the numbers of a `weight` and of its `part`, 32 bits each. Its normals come
in blocks of 2,048. Counter j of block i holds the number 512 i + j in two words, then weight and part. Its four random
words give two pairs of normals by Box and Muller, at places j, 512 + j, 1024 + j and 1536 + j of the block.

kernels.c holds the same, in C. Where that can't be had, plain operations of torch make the same stream.
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
# Blocks that are made together by plain operations: their words stay in cache, and are enough for two threads.
CHUNK = 32


def philox4x32(counter: Tensor, key: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Random words for counters of shape (..., 4) and a key of shape (2,): all of them int64 that hold 32 bits."""
    x0, x1, x2, x3 = counter.unbind(-1)
    key0, key1 = key.unbind()
    for number in range(rounds):
        # A product wraps at 64 bits and its sign is no sign: the upper word is right once it is masked.
        p, q = x0 * 0xD2511F53, x2 * 0xCD9E8D57
        x0, x1 = ((q >> 32) ^ x1 ^ (key0 + number * 0x9E3779B9)) & WORD, q
        x2, x3 = ((p >> 32) ^ x3 ^ (key1 + number * 0xBB67AE85)) & WORD, p
    return torch.stack((x0, x1 & WORD, x2, x3 & WORD), -1)


def normal(n: int, key: Tensor, weight: int = 0, part: int = 0) -> Tensor:
    """The first n normals of a stream, in float32. `key` is an int32 tensor of two elements.

    torch's CPU generator makes normals one after another, in one thread, and takes longer than all the rest of a draw.
    """
    traced = torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None
    if not traced and kernels.library() is not None:
        noise = torch.empty(n, dtype=torch.float32, device="cpu")
        kernels.call("ks_noise", n, key, ctypes.c_uint32(weight), ctypes.c_uint32(part), noise)
        return noise
    blocks = -(-n // BLOCK)
    if traced:  # one graph of operations on whole tensors, which a compiler fuses and vmap can batch
        return _blocks(0, blocks, key, weight, part).reshape(-1)[:n]
    noise = torch.empty(blocks, 4, COUNTERS, dtype=torch.float32, device="cpu")
    for first in range(0, blocks, CHUNK):
        last = min(first + CHUNK, blocks)
        noise[first:last] = _blocks(first, last, key, weight, part)
    return noise.view(-1)[:n]


def _blocks(first: int, last: int, key: Tensor, weight: int, part: int) -> Tensor:
    """Blocks first to last, of shape (blocks, 4, COUNTERS)."""
    number = torch.arange(first * COUNTERS, last * COUNTERS, device=key.device)
    names = (number.new_full((1,), name).expand_as(number) for name in (weight, part))
    counter = torch.stack((number & WORD, number >> 32, *names), 0).movedim(0, -1)
    w0, w1, w2, w3 = philox4x32(counter, key.long() & WORD).view(-1, COUNTERS, 4).unbind(-1)
    return torch.stack((*_pair(w0, w1), *_pair(w2, w3)), 1)


def _pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent standard normals from two random words, by Box and Muller, as kernels.c makes them."""
    # 31 bits: in float32 small numbers keep theirs, so the tail reaches 6.6 standard deviations.
    radius = torch.sqrt(-2 * torch.log(((a >> 1).float() + 0.5) * 2.0**-31))
    # The top two bits are the quarter turn, the others an angle within [-pi/4, pi/4): in one number within [-pi, pi).
    turn = (((b ^ 0xC0000000) + 0xA0000000) & WORD) - 0x80000000
    angle = turn.float() * (math.pi * 2.0**-31)
    return radius * torch.cos(angle), radius * torch.sin(angle)

"""Counter-based noise: standard normals that depend only on a key and on their index, from the generator Philox4x32.

Philox (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011) turns a counter into random
words by ten rounds of multiplication; seven are enough to pass TestU01's BigCrush. A number depends only on the key and
its counter. So any part of a stream can be generated separately, by any number of threads, and again for a gradient.

A stream is identified by the 64 bits of `key` and two 32-bit numbers: the `weight` that the noise is for, and its
`part`. Its normals come in blocks of 2,048. Counter j of block i is the number 512 i + j in two words, then weight and
part. Its four random words give two pairs of normals by Box-Muller, at the indices j, 512 + j, 1024 + j and 1536 + j.

kernels.c implements the same in C. Without it, torch operations make the same stream.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kernelseed.fast import kernels
from kernelseed.fast.traced import is_traced

ROUNDS = 10
COUNTERS = 512
BLOCK = 4 * COUNTERS
CHUNK = 128  # blocks that torch operations make together; few enough to stay in the cache

WORD = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def philox4x32(counter: Tensor, key: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Random words for counters of shape (..., 4) and a key of shape (2,); all are int64 with 32-bit values."""
    x0, x1, x2, x3 = counter.unbind(-1)
    key0, key1 = key.unbind()
    for _ in range(rounds):
        # The masks are needed because the top bit of a product is a sign bit here, which the shift copies.
        p, q = x0 * MULTIPLIERS[0], x2 * MULTIPLIERS[1]
        x0, x1 = ((q >> 32) & WORD) ^ x1 ^ key0, q & WORD
        x2, x3 = ((p >> 32) & WORD) ^ x3 ^ key1, p & WORD
        key0, key1 = (key0 + KEY_STEPS[0]) & WORD, (key1 + KEY_STEPS[1]) & WORD
    return torch.stack((x0, x1, x2, x3), -1)


def _rounds(x: list[Tensor], spare: Tensor, key: list[int]) -> list[Tensor]:
    """The same in place. The four words are in the lower halves of int64; the upper halves are undefined."""
    x0, x1, x2, x3 = x
    for number in range(ROUNDS):
        p, q = x0.bitwise_and_(WORD).mul_(MULTIPLIERS[0]), x2.bitwise_and_(WORD).mul_(MULTIPLIERS[1])
        torch.bitwise_right_shift(q, 32, out=spare).bitwise_xor_(x1).bitwise_xor_(key[0] + number * KEY_STEPS[0])
        torch.bitwise_right_shift(p, 32, out=x1).bitwise_xor_(x3).bitwise_xor_(key[1] + number * KEY_STEPS[1])
        x0, x1, x2, x3, spare = spare, q, x1, p, x3
    return [x0, x1, x2, x3]


def _pair(a: Tensor, b: Tensor, first: Tensor, second: Tensor) -> None:
    """Two independent standard normals from two random words by Box-Muller. The words are overwritten."""
    # 31 bits: float32 keeps the precision of small numbers, so the tail reaches 6.6 standard deviations.
    radius = a.bitwise_and_(WORD).bitwise_right_shift_(1).float().add_(0.5).mul_(2.0**-31).log_().mul_(-2).sqrt_()
    # In kernels.c the top two bits select a quarter turn, and the others are an angle in [-pi/4, pi/4). Here both form
    # one number in [-2^31, 2^31), for an angle in [-pi, pi).
    turn = b.bitwise_xor_(0xC0000000).add_(0xA0000000).bitwise_and_(WORD).sub_(0x80000000)
    angle = turn.float().mul_(math.pi * 2.0**-31)
    torch.mul(radius, angle.cos(), out=first)
    torch.mul(radius, angle.sin_(), out=second)


def _plain(counts: Sequence[int], key: Tensor, weights: Sequence[int], parts: Sequence[int]) -> Tensor:
    """The streams with torch operations, in place on a few buffers, which is a third faster than new tensors."""
    lengths, halves = [-(-n // BLOCK) for n in counts], key.tolist()
    with torch.device("cpu"):
        names = torch.tensor([weights, parts]).repeat_interleave(torch.tensor(lengths), 1)[:, :, None]
        within = torch.cat([torch.arange(length) for length in lengths])[:, None]  # the stream
        noise = torch.empty(len(within), 4, COUNTERS, dtype=torch.float32)
        buffers = torch.empty(5, min(len(within), CHUNK), COUNTERS, dtype=torch.int64)
        places = torch.arange(COUNTERS)
    for start in range(0, len(within), CHUNK):
        now = slice(start, start + CHUNK)
        chunk = noise[now]
        *x, spare = buffers[:, : len(chunk)].unbind()
        torch.add(places, within[now], alpha=COUNTERS, out=x[0])
        torch.bitwise_right_shift(x[0], 32, out=x[1])
        x[2].copy_(names[0, now])
        x[3].copy_(names[1, now])
        w0, w1, w2, w3 = _rounds(x, spare, halves)
        _pair(w0, w1, chunk[:, 0], chunk[:, 1])
        _pair(w2, w3, chunk[:, 2], chunk[:, 3])
    streams = noise.flatten(1).split(lengths)
    return torch.cat([stream.view(-1)[:n] for stream, n in zip(streams, counts, strict=True)])


def normal(n: int, key: Tensor, weight: int = 0, part: int = 0) -> Tensor:
    """The first n normals of a stream, in float32 on the CPU. `key` is an int32 tensor of two elements."""
    return normals([n], key, [weight], [part])


def normals(counts: Sequence[int], key: Tensor, weights: Sequence[int], parts: Sequence[int]) -> Tensor:
    """The first normals of several streams of one key, one stream after another.

    torch's CPU generator uses a single thread and takes longer than the rest of a draw.
    """
    if is_traced():
        return _operation(counts, key, weights, parts)
    if kernels.library() is None:
        return _plain(counts, key, weights, parts)
    noise = torch.empty(sum(counts), dtype=torch.float32, device="cpu")
    for n, weight, part, stream in zip(counts, weights, parts, noise.split(list(counts)), strict=True):
        kernels.call("ks_noise", n, key, ctypes.c_uint32(weight), ctypes.c_uint32(part), stream)
    return noise


# For torch.compile and torch.func the streams are one operation. With the hundred operations of each in its graph, a
# ResNet would take minutes to compile and run slower.
_SCHEMA = "(SymInt[] counts, Tensor key, SymInt[] weights, SymInt[] parts) -> Tensor"
_operation = torch.library.custom_op("kernelseed::normals", normals, mutates_args=(), schema=_SCHEMA)


@_operation.register_fake
def _(counts: Sequence[int], key: Tensor, weights: Sequence[int], parts: Sequence[int]) -> Tensor:
    return torch.empty(sum(counts), dtype=torch.float32, device="cpu")


@_operation.register_vmap
def _(
    info: object,
    in_dims: tuple[int, ...],
    counts: Sequence[int],
    key: Tensor,
    weights: Sequence[int],
    parts: Sequence[int],
) -> tuple[Tensor, int]:
    return torch.stack([normals(counts, each, weights, parts) for each in key.movedim(in_dims[1], 0)]), 0

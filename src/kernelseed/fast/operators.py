"""The operators of a draw, `torch.ops.kernelseed.*`, with their kernels for the CPU; see fused.py for their use."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelseed.fast import kernels
from kernelseed.fast.germination import fold, unfold

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


LIBRARY = torch.library.Library("kernelseed", "FRAGMENT")
"""The operators. Not torch.library.custom_op: its checks in every call take longer than the draw of a small weight."""


def _operator(schema: str) -> Callable[[Callable[..., Any]], Any]:
    """An operator of PyTorch with this name and signature, whose kernel for the CPU is the function."""
    name = LIBRARY.define(schema)

    def register(function: Callable[..., Any]) -> Any:
        LIBRARY.impl(name, function, "CPU")
        return getattr(torch.ops.kernelseed, name).default

    return register


_OUTPUTS = "(Tensor value, Tensor std, Tensor log_q, Tensor token)"


@_operator(
    "draw_kernel_seed(Tensor seed, Tensor mean_germinator, Tensor rho_germinator, Tensor rho_offset, SymInt[] shape,"
    f" Tensor key, SymInt weight, SymInt part, bool mean_bf16, bool rho_bf16) -> {_OUTPUTS}"
)
def draw_kernel_seed(
    seed: Tensor, mean: Tensor, rho: Tensor, offset: Tensor, shape: Sequence[int], *stream_and_bf16: Any
) -> tuple[Tensor, ...]:
    """Germinate and sample a weight."""
    *stream, mean_bf16, rho_bf16 = stream_and_bf16
    sizes, bf16 = _sizes(seed, mean), (mean_bf16, rho_bf16)
    value, std = seed.new_empty(len(mean), sizes[1]), seed.new_empty(len(mean), sizes[1])
    log_q = _sums(kernels.count("ks_tiles", *sizes[:2]))
    scratch = kernels.scratch("ks_germinate_scratch", *sizes, *bf16)
    given = (*(t.contiguous() for t in (mean, rho, seed)), offset, *_in_c(*stream))
    kernels.call("ks_germinate", *sizes, *given, value, std, log_q, scratch, *bf16)
    return fold(value, torch.Size(shape)), std, _log_q(log_q, value), token_of(value)


@_operator(
    "draw_kernel_seed_backward(Tensor? grad, Tensor? message, Tensor value, Tensor std, Tensor seed,"
    " Tensor mean_germinator, Tensor rho_germinator, Tensor key, SymInt weight, SymInt part, bool mean_bf16,"
    " bool rho_bf16)"
    " -> (Tensor seed, Tensor mean_germinator, Tensor rho_germinator, Tensor rho_offset)"
)
def draw_kernel_seed_backward(
    grad: Tensor | None,
    message: Tensor | None,
    value: Tensor,
    std: Tensor,
    seed: Tensor,
    mean: Tensor,
    rho: Tensor,
    *stream_and_bf16: Any,
) -> tuple[Tensor, ...]:
    """The gradients, from those of the weight and of the token."""
    *stream, mean_bf16, rho_bf16 = stream_and_bf16
    sizes, bf16 = _sizes(seed, mean), (mean_bf16, rho_bf16)
    flat = torch.zeros_like(std) if grad is None else unfold(grad).contiguous()
    gradients = tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (seed, mean, rho))
    d_offset = _sums(kernels.count("ks_tiles", *sizes[:2]))
    scratch = kernels.scratch("ks_ungerminate_scratch", *sizes, *bf16)
    given = (
        flat,
        unfold(value).contiguous(),
        std.contiguous(),
        mean.T.contiguous(),
        rho.T.contiguous(),
        seed.contiguous(),
        *_in_c(*stream),
    )
    kernels.call("ks_ungerminate", *sizes, *given, *_kl_term(message), *gradients, d_offset, scratch, *bf16)
    return *gradients, d_offset.sum().float().view(1)


@_operator(f"draw_mean_field(Tensor mean, Tensor rho, Tensor key, SymInt weight, SymInt part) -> {_OUTPUTS}")
def draw_mean_field(mean: Tensor, rho: Tensor, *stream: Any) -> tuple[Tensor, ...]:
    """Sample a weight."""
    value, std = (torch.empty_like(mean, memory_format=torch.contiguous_format) for _ in range(2))
    log_q = _sums(kernels.blocks(value.numel()))
    given = (mean.contiguous(), rho.contiguous(), _floats([0.0]), *_in_c(*stream))
    kernels.call("ks_sample", value.numel(), *given, value, std, log_q)
    return value, std, _log_q(log_q, value), token_of(value)


@_operator(
    "draw_mean_field_backward(Tensor? grad, Tensor? message, Tensor value, Tensor std, Tensor mean)"
    " -> (Tensor mean, Tensor rho)"
)
def draw_mean_field_backward(
    grad: Tensor | None, message: Tensor | None, value: Tensor, std: Tensor, mean: Tensor
) -> tuple[Tensor, ...]:
    """The gradients, from those of the weight and of the token."""
    grad = torch.zeros_like(std) if grad is None else grad.contiguous()
    d_mean, d_rho = torch.empty_like(grad), torch.empty_like(grad)
    given = (grad, value.contiguous(), std.contiguous(), mean.contiguous(), *_kl_term(message))
    kernels.call("ks_gradient", std.numel(), *given, d_mean, d_rho)
    return d_mean, d_rho


@_operator("scale_mixture_kl(Tensor token, Tensor value, Tensor log_q, float pi, float sigma1, float sigma2) -> Tensor")
def scale_mixture_kl(_: Tensor, value: Tensor, log_q: Tensor, pi: float, sigma1: float, sigma2: float) -> Tensor:
    """log q - log P; the token is there for its gradient alone."""
    constants, log_p = _floats(constants_of(pi, sigma1, sigma2)), _sums(kernels.blocks(value.numel()))
    flat = value if value.is_contiguous() else unfold(value).contiguous()
    kernels.call("ks_mixture", value.numel(), flat, constants, log_p)
    constant = math.log(pi) - math.log(sigma1) - LOG_SQRT_2PI
    return (log_q - log_p.sum() - value.numel() * constant).float()


def constants_of(pi: float, sigma1: float, sigma2: float) -> tuple[float, float, float]:
    """b, c and d of log P(w) = constant + softplus(b - c w^2) - d w^2."""
    b = math.log1p(-pi) - math.log(pi) + math.log(sigma1) - math.log(sigma2)
    wide, narrow = 0.5 / sigma1**2, 0.5 / sigma2**2
    return b, narrow - wide, wide


def _kl_term(message: Tensor | None) -> tuple[Any, ctypes.c_float]:
    """The constants of the prior and the coefficient of the KL, from the gradient of the token."""
    coefficient, *scaled = [0.0] if message is None else message.tolist()
    constants = _floats([s / coefficient for s in scaled] if coefficient else [0.0] * 3)
    return constants, ctypes.c_float(coefficient)


def _sizes(seed: Tensor, germinator: Tensor) -> tuple[int, int, int]:
    """Germination's products: the rows, the columns and what is summed over."""
    return len(germinator), seed[0].numel(), len(seed)


def _in_c(key: Tensor, weight: int, part: int) -> tuple[Tensor, ctypes.c_uint32, ctypes.c_uint32]:
    return key.contiguous(), ctypes.c_uint32(weight), ctypes.c_uint32(part)


def _floats(numbers: Sequence[float]) -> Any:
    """An array of C; making a tensor takes as long as drawing a small weight."""
    return (ctypes.c_float * len(numbers))(*numbers)


def _sums(n: int) -> Tensor:
    return torch.empty(n, dtype=torch.float64, device="cpu")


def _log_q(sums: Tensor, value: Tensor) -> Tensor:
    return sums.sum() - value.numel() * LOG_SQRT_2PI


def token_of(value: Tensor) -> Tensor:
    """What connects the draw of this weight with its KL."""
    return value.new_zeros(4, dtype=torch.float64)

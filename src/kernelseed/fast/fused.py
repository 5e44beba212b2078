"""The fast draw on the CPU: germination, noise, sampling and KL in few passes over memory, with analytic gradients.

A draw of eleven million weights is dominated by memory traffic. As separate operations, softplus, noise, the density of
the mixture and their backward passes cost more than the network itself. Here the draw of a weight is one matrix product
and one pass over memory, and its gradient is one pass and two products. The KL is one pass; its gradient is computed in
the gradient pass of the weight.

The passes are the C functions of kernels.c. Without them a weight is drawn with plain operations, which are also the
reference in the tests.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelseed.errors import GraphError
from kernelseed.fast import kernels
from kernelseed.fast.germination import fold, germinate_matrix, unfold

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def supports(*tensors: Tensor) -> bool:
    """Whether the kernels support these: float32 on a CPU with a C compiler, without torch.compile and torch.func."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.maybe_current_level() is None
        and all(t.is_cpu and t.dtype == torch.float32 for t in tensors)
        and kernels.library() is not None
    )


@dataclass(frozen=True, eq=False)
class Drawn:
    """A weight drawn by the kernels. The token connects it with its KL in the autograd graph."""

    value: Tensor
    token: Tensor
    record: Record


def draw_kernel_seed(
    seed: Tensor, mean_germinator: Tensor, rho_germinator: Tensor, rho_offset: Tensor, shape: torch.Size, stream: Stream
) -> Drawn:
    """Germinate and sample a weight of this shape from its seed."""
    record = Record(stream)
    value, token = _Germinate.apply(record, shape, seed, mean_germinator, rho_germinator, rho_offset)
    return Drawn(value, token, record)


def draw_mean_field(mean: Tensor, rho: Tensor, stream: Stream) -> Drawn:
    """Sample a weight that has a mean and a rho for each of its elements."""
    record = Record(stream)
    value, token = _MeanFieldDraw.apply(record, mean, rho)
    return Drawn(value, token, record)


def scale_mixture_kl(drawn: Drawn, pi: float, sigma1: float, sigma2: float) -> Tensor:
    """log q(w) - log P(w), summed, under the prior pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2)."""
    return _ScaleMixtureKL.apply(drawn.token, drawn.record, pi, sigma1, sigma2)


Stream = tuple[Tensor, int, int]
"""The noise of a weight: the key of the draw, the index of the weight and the index of the part."""


class Record:
    """What the draw of one weight stores for its gradient. All tensors are flat, in the order of germination."""

    def __init__(self, stream: Stream) -> None:
        key, weight, part = stream
        self.stream = (key, ctypes.c_uint32(weight), ctypes.c_uint32(part))
        self.kl_terms: list[tuple[Tensor, float]] = []
        """(constants of the prior, coefficient) of the KLs whose backward passes have run before that of the weight."""

    def sample(self, mean: Tensor, rho: Tensor, offset: Tensor, value: Tensor, std: Tensor) -> None:
        """Write the draw to `value`, which may be `mean`, and the standard deviation to `std`, which may be `rho`."""
        n = value.numel()
        self.value, self.std = value, std
        log_q = torch.empty(kernels.blocks(n), dtype=torch.float64)
        kernels.call("ks_sample", n, mean, rho, offset, *self.stream, value, std, log_q)
        self.log_q = log_q.sum().item() - n * LOG_SQRT_2PI

    def log_prior(self, constants: Tensor) -> float:
        """The sum of log P, up to a constant per weight."""
        n = self.value.numel()
        log_p = torch.empty(kernels.blocks(n), dtype=torch.float64)
        kernels.call("ks_mixture", n, self.value, constants, log_p)
        return log_p.sum().item()

    def gradient(self, grad: Tensor | None, d_mean: Tensor, d_rho: Tensor) -> Tensor:
        """Write the gradients of mean and rho, from the weight and from its KLs; return the sum of d_rho."""
        terms, self.kl_terms = self.kl_terms or [(torch.zeros(3), 0.0)], []
        total = self._fill(d_mean, d_rho, torch.zeros_like(self.value) if grad is None else grad, *terms[0])
        for term in terms[1:]:  # a KL of the same draw with a second prior, which is rare
            more_mean, more_rho, nothing = (torch.zeros_like(self.value) for _ in range(3))
            total = total + self._fill(more_mean, more_rho, nothing, *term)
            d_mean += more_mean
            d_rho += more_rho
        return total.float()

    def _fill(self, d_mean: Tensor, d_rho: Tensor, grad: Tensor, constants: Tensor, coefficient: float) -> Tensor:
        """The gradients from the weight and from one KL; return the sum of d_rho."""
        n = self.value.numel()
        sums = torch.empty(kernels.blocks(n), dtype=torch.float64)
        inputs = (grad, self.value, self.std, *self.stream)
        kernels.call("ks_gradient", n, *inputs, constants, ctypes.c_float(coefficient), d_mean, d_rho, sums)
        return sums.sum()


class _Germinate(torch.autograd.Function):
    """The draw of a kernel seed: the weight, and a token that orders the backward pass of its KL before its own."""

    @staticmethod
    def forward(ctx: Any, record: Record, shape: torch.Size, seed: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        mean_germinator, rho_germinator, rho_offset = rest
        germinators = torch.cat((mean_germinator, rho_germinator))
        value, std = germinate_matrix(germinators, seed).view(2, -1)  # mean and rho; the draw overwrites them
        record.sample(value, std, rho_offset, value, std)
        ctx.record = record
        ctx.save_for_backward(seed, germinators)
        ctx.set_materialize_grads(False)
        return fold(value.view(len(mean_germinator), -1), shape), value.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        seed, germinators = saved_tensors(ctx)
        gradients = torch.empty(len(germinators), seed[0].numel())  # the rows of mean, then those of rho
        d_mean, d_rho = gradients.view(2, -1)
        flat = None if grad is None else unfold(grad.float()).contiguous().view(-1)
        d_offset = ctx.record.gradient(flat, d_mean, d_rho)
        d_seed = (germinators.T @ gradients).view_as(seed)
        d_mean_germinator, d_rho_germinator = (gradients @ seed.flatten(1).T).chunk(2)
        return None, None, d_seed, d_mean_germinator, d_rho_germinator, d_offset.view(1)


class _MeanFieldDraw(torch.autograd.Function):
    """The draw of a mean-field weight, with the same token."""

    @staticmethod
    def forward(ctx: Any, record: Record, mean: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        value, std = torch.empty(mean.numel()), torch.empty(mean.numel())
        record.sample(mean.reshape(-1), rho.reshape(-1), torch.zeros(1), value, std)
        ctx.record = record
        ctx.save_for_backward(rho)
        ctx.set_materialize_grads(False)
        # A view is returned. The context owns the record: if the record held the output, whose history is the context,
        # the two would form a cycle and the draw would not be freed.
        return value.view(mean.shape), value.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        (rho,) = saved_tensors(ctx)
        d_mean, d_rho = torch.empty(rho.shape), torch.empty(rho.shape)
        flat = None if grad is None else grad.contiguous().view(-1)
        ctx.record.gradient(flat, d_mean.view(-1), d_rho.view(-1))
        return None, d_mean, d_rho


class _ScaleMixtureKL(torch.autograd.Function):
    """The value of the KL. Its gradient is added in the backward pass of the weight.

    log P(w) = constant + softplus(b - c w^2) - d w^2.
    """

    @staticmethod
    def forward(ctx: Any, token: Tensor, record: Record, pi: float, sigma1: float, sigma2: float) -> Tensor:
        b = math.log1p(-pi) - math.log(pi) + math.log(sigma1) - math.log(sigma2)
        wide, narrow = 0.5 / sigma1**2, 0.5 / sigma2**2
        ctx.record, ctx.constants = record, torch.tensor([b, narrow - wide, wide])
        constant = math.log(pi) - math.log(sigma1) - LOG_SQRT_2PI
        log_prior = record.log_prior(ctx.constants) + record.value.numel() * constant
        return torch.tensor(record.log_q - log_prior, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Because of the token, the backward pass of the weight runs after this one. It empties the list.
        ctx.record.kl_terms.append((ctx.constants, grad.item()))
        return grad, None, None, None, None


class _OnePass(torch.autograd.Function):
    """The identity. A second backward pass through it raises a clear error."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(tensors[0])
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        saved_tensors(ctx)
        return grads


def one_pass(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors, with a clear error if a backward pass finds their graph already freed."""
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:
        return tensors
    return _OnePass.apply(*tensors)


def saved_tensors(ctx: Any) -> tuple[Tensor, ...]:
    """The tensors that the forward pass saved, or an error if an earlier backward pass has freed them."""
    try:
        saved: tuple[Tensor, ...] = ctx.saved_tensors
    except RuntimeError as error:
        if "second time" not in str(error):  # such as a parameter that was changed in place
            raise
        raise GraphError(
            "a backward pass reached the weights of this draw a second time, but the first one has freed their graph. "
            "Reentrant checkpointing does that: use checkpoint(..., use_reentrant=False). For two losses of one draw, "
            "add them, or call backward(retain_graph=True) on the first."
        ) from None
    return saved

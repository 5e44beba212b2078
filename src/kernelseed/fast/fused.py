"""The fast draw on the CPU: germination, noise, sampling and KL in few passes over memory, with analytic gradients.

A draw of eleven million weights is dominated by memory traffic. As separate operations, softplus, noise, the density of
the mixture and their backward passes cost more than the network itself. Here the draw of a weight is one operation,
and its gradient another; the KL is one pass, and its gradient is computed in the gradient pass of the weight.

They are operators of PyTorch, `torch.ops.kernelseed.*`: torch.compile, torch.export and torch.func take them as they
are. Their kernels for the CPU are the C functions of kernels.c; another device can register its own. Where there is
none, a weight is drawn with plain operations, which are also the reference in the tests.

The gradient of the KL needs only four numbers: its coefficient, and that times the three constants of the prior. They
travel as the gradient of the draw's `token`, four numbers that have no other use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelseed.fast import kernels, operators
from kernelseed.fast.germination import fold, in_bfloat16
from kernelseed.fast.one_backward import saved_tensors

Stream = tuple[Tensor, int, int]
"""The noise of a weight: the key of the draw, the index of the weight and the index of the part."""


class Drawn(NamedTuple):
    """A weight drawn by a kernel."""

    value: Tensor
    std: Tensor
    """The standard deviations, as the matrix of germination."""
    log_q: Tensor
    """The log density of the draw, summed."""
    token: Tensor
    """Connects the draw with its KL in the autograd graph. It is for one KL."""


def supports(*tensors: Tensor) -> bool:
    """Whether there is a kernel for these: float32 on a CPU with a C compiler, or on a device that has its own.

    torch.func can't differentiate an operator whose gradient is registered with torch.library.
    """
    devices = {t.device.type for t in tensors}
    known = len(devices) == 1 and all(t.dtype == torch.float32 for t in tensors) and _has_kernels(devices.pop())
    return known and not _differentiated_by_func()


def _differentiated_by_func() -> bool:
    if torch._C._functorch.maybe_current_level() is None:
        return False
    kinds = torch._C._functorch.TransformType
    return any(level.key() in (kinds.Grad, kinds.Jvp) for level in torch._C._functorch.get_interpreter_stack() or [])


def _has_kernels(device: str) -> bool:
    if device == "cpu":
        return kernels.library() is not None
    key = torch._C._dispatch_key_for_device(device)
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("kernelseed::draw_kernel_seed", key))


# What torch.compiler.assume_constant_result sets, which imports the whole compiler.
_has_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]


def draw_kernel_seed(
    seed: Tensor, mean_germinator: Tensor, rho_germinator: Tensor, rho_offset: Tensor, shape: torch.Size, stream: Stream
) -> Drawn:
    """Germinate and sample a weight of this shape from its seed."""
    factors = (seed, mean_germinator, rho_germinator, rho_offset)
    return Drawn(*operators.draw_kernel_seed(*factors, shape, *stream, *in_bfloat16(seed)))


def draw_mean_field(mean: Tensor, rho: Tensor, stream: Stream) -> Drawn:
    """Sample a weight that has a mean and a rho for each of its elements."""
    return Drawn(*operators.draw_mean_field(mean, rho, *stream))


def scale_mixture_kl(drawn: Drawn, pi: float, sigma1: float, sigma2: float) -> Tensor:
    """log q(w) - log P(w), summed, under the prior pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2)."""
    return operators.scale_mixture_kl(drawn.token, drawn.value, drawn.log_q, pi, sigma1, sigma2)


# --- what PyTorch has to know of them: shapes, gradients and batches ------------------------------------------------


def _like_a_draw(value: Tensor, std: Tensor) -> tuple[Tensor, ...]:
    return value, std, value.new_empty((), dtype=torch.float64), operators.token_of(value)


def _fake(operator: Any) -> Callable[[Callable[..., Any]], Any]:
    return torch.library.register_fake(operator.name())


def _differentiate(operator: Any, setup: Callable[..., None], gradient: Callable[..., Any]) -> None:
    """Register the gradient of an operator: as torch.library.register_autograd does, without its cost in each call."""

    def below(keys: Any, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *inputs)

    def forward(ctx: Any, keys: Any, *inputs: Any) -> Any:
        output = below(keys, *inputs)
        setup(ctx, inputs, output)
        return output

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return None, *gradient(ctx, *grads)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(once_differentiable(backward))}
    name = operator.name().replace("::", "_")  # by which a profiler shows it
    function: Any = type(name, (torch.autograd.Function,), methods)

    def kernel(keys: Any, *inputs: Any) -> Any:
        recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs)
        return function.apply(keys, *inputs) if recorded else below(keys, *inputs)

    operators.LIBRARY.impl(operator, kernel, "Autograd", with_keyset=True)


@_fake(operators.draw_kernel_seed)
def _(seed: Tensor, mean: Tensor, rho: Tensor, offset: Tensor, shape: Sequence[int], *stream: Any) -> Any:
    matrix = (len(mean), seed[0].numel())
    return _like_a_draw(fold(seed.new_empty(matrix), torch.Size(shape)), seed.new_empty(matrix))


@_fake(operators.draw_kernel_seed_backward)
def _(_: Any, __: Any, value: Tensor, std: Tensor, seed: Tensor, mean: Tensor, rho: Tensor, *stream: Any) -> Any:
    return *(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (seed, mean, rho)), seed.new_empty(1)


@_fake(operators.draw_mean_field)
def _(mean: Tensor, rho: Tensor, *stream: Any) -> Any:
    return _like_a_draw(*(torch.empty_like(mean, memory_format=torch.contiguous_format) for _ in range(2)))


@_fake(operators.draw_mean_field_backward)
def _(grad: Any, message: Any, value: Tensor, std: Tensor, *stream: Any) -> Any:
    return torch.empty_like(std), torch.empty_like(std)


@_fake(operators.scale_mixture_kl)
def _(token: Tensor, value: Tensor, log_q: Tensor, pi: float, sigma1: float, sigma2: float) -> Any:
    return value.new_empty((), dtype=torch.float32)


def _setup_kernel_seed(ctx: Any, inputs: Any, output: Any) -> None:
    seed, mean, rho, _, _, key, *ctx.settings = inputs
    _save(ctx, output, seed, mean, rho, key)


def _setup_mean_field(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, output, inputs[0])


def _save(ctx: Any, output: tuple[Tensor, ...], *inputs: Tensor) -> None:
    value, std, log_q, _ = output
    ctx.save_for_backward(value, std, *inputs)
    ctx.mark_non_differentiable(std, log_q)
    ctx.set_materialize_grads(False)


def _kernel_seed_gradient(ctx: Any, grad: Tensor | None, _: Any, __: Any, message: Tensor | None) -> tuple[Any, ...]:
    gradients = operators.draw_kernel_seed_backward(grad, message, *saved_tensors(ctx), *ctx.settings)
    return *gradients, *(None,) * 6


def _mean_field_gradient(ctx: Any, grad: Tensor | None, _: Any, __: Any, message: Tensor | None) -> tuple[Any, ...]:
    return *operators.draw_mean_field_backward(grad, message, *saved_tensors(ctx)), None, None, None


def _setup_kl(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.prior = inputs[3:]


def _kl_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    numbers = (1.0, *operators.constants_of(*ctx.prior))
    message = grad.double() * torch.tensor(numbers, dtype=torch.float64, device=grad.device)
    return message, None, None, None, None, None


_differentiate(operators.draw_kernel_seed, _setup_kernel_seed, _kernel_seed_gradient)
_differentiate(operators.draw_mean_field, _setup_mean_field, _mean_field_gradient)
_differentiate(operators.scale_mixture_kl, _setup_kl, _kl_gradient)


def _one_by_one(operation: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of torch.vmap: each element of the batch is a draw of its own."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        def element(i: int) -> list[Any]:
            return [
                a.select(d, i) if d is not None and isinstance(a, Tensor) else a
                for a, d in zip(arguments, in_dims, strict=True)
            ]

        found = [operation(*element(i)) for i in range(info.batch_size)]
        if isinstance(found[0], Tensor):
            return torch.stack(found), 0
        return tuple(torch.stack(each) for each in zip(*found, strict=True)), (0,) * len(found[0])

    return rule


_GRADIENTS = (operators.draw_kernel_seed_backward, operators.draw_mean_field_backward)
for _each in (operators.draw_kernel_seed, operators.draw_mean_field, operators.scale_mixture_kl, *_GRADIENTS):
    torch.library.register_vmap(_each.name(), _one_by_one(_each))

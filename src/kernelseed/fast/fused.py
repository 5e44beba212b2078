"""The fast draw on the CPU: germination, noise, sampling and KL in few passes over memory, with analytic gradients.

A draw of eleven million weights is memory traffic: written as separate operations, softplus, noise, the mixture's
density and their backward passes cost more than the network that they are for. Here a weight's draw is one matrix
product and one pass; its gradient one pass and two products; the KL one pass, whose gradient rides along with the
weight's.

The passes are the C functions of kernels.c. Where they can't be had, the draw is made by `Gaussian.sample`, which is
also the reference that the tests hold this to.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelseed.core.distributions import LOG_SQRT_2PI, Gaussian, Prior, Sample
from kernelseed.core.priors import ScaleMixture
from kernelseed.core.weights import KernelSeed, MeanField, WeightDistribution, fold, germinate_matrix, unfold
from kernelseed.fast import kernels


def supports(tensors: Iterable[Tensor]) -> bool:
    """Whether the kernels take these: float32 on a CPU with a C compiler, outside of torch.compile and torch.func."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.maybe_current_level() is None
        and all(t.is_cpu and t.dtype == torch.float32 for t in tensors)
        and kernels.library() is not None
    )


def new_key(generator: torch.Generator | None = None) -> Tensor:
    """The key of a draw's noise: 64 random bits, from torch's generator, so that a seed fixes every draw."""
    return torch.randint(-(2**31), 2**31, (2,), generator=generator, dtype=torch.int64).to(torch.int32)


def normal(n: int, key: Tensor, first_block: int = 0) -> Tensor:
    """n standard normals of the stream `key`. Number i is a function of the key, the first block and i alone.

    torch's CPU generator makes normals one after another, in one thread, and takes longer than all the rest of a draw.
    """
    noise = torch.empty(n)
    kernels.call("ks_noise", n, key, ctypes.c_uint32(first_block), noise)
    return noise


def _constants(prior: ScaleMixture) -> Tensor:
    """b, c, d of log P(w) = const + softplus(b - c w^2) - d w^2."""
    b = math.log1p(-prior.pi) - math.log(prior.pi) + math.log(prior.sigma1) - math.log(prior.sigma2)
    wide, narrow = 0.5 / prior.sigma1**2, 0.5 / prior.sigma2**2
    return torch.tensor([b, narrow - wide, wide])


class _Record:
    """What a draw of one weight keeps for its gradient. All tensors are flat, in the order of germination."""

    def __init__(self, key: Tensor, first_block: int) -> None:
        self.key = key
        self.first_block = first_block
        self.kl_terms: list[tuple[Tensor, float]] = []
        """(prior's constants, coefficient) of the KLs that a backward pass has met on its way here."""

    def sample(self, mean: Tensor, rho: Tensor, offset: Tensor, value: Tensor, std: Tensor) -> None:
        """Draw into `value`, which may be `mean`, and leave the deviation in `std`, which may be `rho`."""
        n = value.numel()
        self.value, self.std = value, std
        log_q = torch.empty(kernels.blocks(n), dtype=torch.float64)
        first = ctypes.c_uint32(self.first_block)
        kernels.call("ks_sample", n, mean, rho, offset, self.key, first, value, std, log_q)
        self.log_q = log_q.sum().item() - n * LOG_SQRT_2PI

    def log_prior(self, constants: Tensor) -> float:
        """The sum of log P but for a constant a weight."""
        n = self.value.numel()
        log_p = torch.empty(kernels.blocks(n), dtype=torch.float64)
        kernels.call("ks_mixture", n, self.value, constants, log_p)
        return log_p.sum().item()

    def gradient(self, grad: Tensor | None, d_mean: Tensor, d_rho: Tensor) -> Tensor:
        """Fill the gradients for mean and rho, by way of the weight and of its KLs; returns d_rho's sum."""
        terms, self.kl_terms = self.kl_terms or [(torch.zeros(3), 0.0)], []
        total = self._fill(d_mean, d_rho, torch.zeros_like(self.value) if grad is None else grad, *terms[0])
        for term in terms[1:]:  # a second prior's KL at the same draw, which is rare
            more_mean, more_rho, nothing = (torch.zeros_like(self.value) for _ in range(3))
            total = total + self._fill(more_mean, more_rho, nothing, *term)
            d_mean += more_mean
            d_rho += more_rho
        return total.float()

    def _fill(self, d_mean: Tensor, d_rho: Tensor, grad: Tensor, constants: Tensor, coefficient: float) -> Tensor:
        """The gradients by way of the weight and of one KL; returns d_rho's sum."""
        n = self.value.numel()
        sums = torch.empty(kernels.blocks(n), dtype=torch.float64)
        inputs = (self.value, self.std, self.key, ctypes.c_uint32(self.first_block))
        kernels.call("ks_gradient", n, grad, *inputs, constants, ctypes.c_float(coefficient), d_mean, d_rho, sums)
        return sums.sum()


class _Germinate(torch.autograd.Function):
    """A kernel seed's draw: the weight, and a token through which its KL sends its coefficient back."""

    @staticmethod
    def forward(ctx: Any, record: _Record, shape: torch.Size, seed: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        mean_germinator, rho_germinator, rho_offset = rest
        germinators = torch.cat((mean_germinator, rho_germinator))
        value, std = germinate_matrix(germinators, seed).view(2, -1)  # mean and rho, which the draw overwrites
        record.sample(value, std, rho_offset, value, std)
        ctx.record = record
        ctx.save_for_backward(seed, germinators)
        ctx.set_materialize_grads(False)
        return fold(value.view(len(mean_germinator), -1), shape), value.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        seed, germinators = ctx.saved_tensors
        gradients = torch.empty(len(germinators), seed[0].numel())  # of mean and of rho, one below the other
        d_mean, d_rho = gradients.view(2, -1)
        flat = None if grad is None else unfold(grad.float()).contiguous().view(-1)
        d_offset = ctx.record.gradient(flat, d_mean, d_rho)
        d_seed = (germinators.T @ gradients).view_as(seed)
        d_mean_germinator, d_rho_germinator = (gradients @ seed.flatten(1).T).chunk(2)
        return None, None, d_seed, d_mean_germinator, d_rho_germinator, d_offset.view(1)


class _MeanFieldDraw(torch.autograd.Function):
    """A mean-field weight's draw, with the same token."""

    @staticmethod
    def forward(ctx: Any, record: _Record, mean: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        value, std = torch.empty(mean.numel()), torch.empty(mean.numel())
        record.sample(mean.reshape(-1), rho.reshape(-1), torch.zeros(1), value, std)
        ctx.record = record
        ctx.shape = mean.shape
        ctx.set_materialize_grads(False)
        # A view goes out: the record is the context's, and were it to hold the output, whose history is the context,
        # or a view of it, no draw would ever be freed.
        return value.view(mean.shape), value.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        d_mean, d_rho = torch.empty(ctx.shape), torch.empty(ctx.shape)
        flat = None if grad is None else grad.contiguous().view(-1)
        ctx.record.gradient(flat, d_mean.view(-1), d_rho.view(-1))
        return None, d_mean, d_rho


class _MixtureKL(torch.autograd.Function):
    """The KL's value now; its gradient when the weight's own backward pass comes by."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, record: _Record, prior: ScaleMixture) -> Tensor:
        ctx.record, ctx.constants = record, _constants(prior)
        constant = math.log(prior.pi) - math.log(prior.sigma1) - LOG_SQRT_2PI
        log_prior = record.log_prior(ctx.constants) + record.value.numel() * constant
        return torch.tensor(record.log_q - log_prior, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # The weight's backward waits for this one, because of the token; it empties the list.
        ctx.record.kl_terms.append((ctx.constants, grad.item()))
        return grad, None, None


class FusedSample(Sample):
    """A sample whose Gaussian is decoded only if somebody asks for it."""

    _token: Tensor
    _record: _Record
    _weight: WeightDistribution

    def __init__(self, value: Tensor, token: Tensor, record: _Record, weight: WeightDistribution) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "_token", token)
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_weight", weight)

    @functools.cached_property
    def source(self) -> Gaussian:
        """The Gaussian, decoded anew from the parameters."""
        return self._weight()

    @property
    def noise(self) -> Tensor:
        """The noise in the weight's own shape, made again from its key."""
        shape = self._weight.shape
        noise = normal(shape.numel(), self._record.key, self._record.first_block)
        return (
            fold(noise.view(min(shape[:2]), -1), shape) if isinstance(self._weight, KernelSeed) else noise.view(shape)
        )

    @property
    def fixed(self) -> bool:
        """Never: fixed weights are not drawn."""
        return False

    def kl(self, prior: Prior) -> Tensor:
        """Fused for the scale mixture, as any other sample's else."""
        if type(prior) is ScaleMixture:
            return _MixtureKL.apply(self._token, self._record, prior)
        return super().kl(prior)


def draw(weights: Mapping[str, WeightDistribution], generator: torch.Generator | None) -> dict[str, Sample] | None:
    """Germinate and sample each weight by the fast path; None where that can't be had."""
    if not all(isinstance(w, (KernelSeed, MeanField)) for w in weights.values()):
        return None
    if not supports(p for w in weights.values() for p in w.parameters()):
        return None
    key, block = new_key(generator), 0
    samples: dict[str, Sample] = {}
    for name, weight in weights.items():
        record = _Record(key, block)
        block += kernels.blocks(weight.num_weights)
        if isinstance(weight, KernelSeed):
            parameters = (weight.seed, weight.mean_germinator, weight.rho_germinator, weight.rho_offset)
            value, token = _Germinate.apply(record, weight.shape, *parameters)
        else:
            assert isinstance(weight, MeanField)
            value, token = _MeanFieldDraw.apply(record, weight.mean, weight.rho)
        samples[name] = FusedSample(value, token, record, weight)
    return samples


def resample(gaussians: Mapping[str, Gaussian], generator: torch.Generator | None) -> dict[str, Sample] | None:
    """Sample each decoded Gaussian with the fast noise; None where that can't be had."""
    stds = {name: g.std for name, g in gaussians.items() if g.std is not None}
    if len(stds) < len(gaussians) or not supports((*stds.values(), *(g.mean for g in gaussians.values()))):
        return None
    key, block = new_key(generator), 0
    samples: dict[str, Sample] = {}
    for name, std in stds.items():
        # In the order of memory, which is germination's: the same generator gives the draw that `draw` makes.
        noise = normal(std.numel(), key, block).as_strided(std.shape, std.stride())
        block += kernels.blocks(std.numel())
        samples[name] = Sample(torch.addcmul(gaussians[name].mean, std, noise), gaussians[name], noise)
    return samples

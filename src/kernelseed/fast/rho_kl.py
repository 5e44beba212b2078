"""The KL between Gaussians with its gradient written down: a third of the passes over memory that autograd takes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelseed.fast.one_backward import saved_tensors


class _GaussianKL(torch.autograd.Function):
    """KL(N(mean, softplus(rho)^2) || N(prior_mean, prior_std^2)), summed."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor, *prior: Tensor) -> Tensor:
        prior_mean, prior_std, prior_log_std = prior
        std = F.softplus(rho).clamp_min_(torch.finfo(rho.dtype).tiny)
        shift = torch.sub(mean, prior_mean).div_(prior_std)
        ratio = std / prior_std
        ctx.save_for_backward(std, shift, ratio, prior_std)
        squares = sum(each.reshape(-1).dot(each.reshape(-1)) for each in (ratio, shift))
        return 0.5 * (squares - mean.numel()) + torch.sub(prior_log_std, std.log()).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        std, shift, ratio, prior_std = saved_tensors(ctx)
        slope = torch.expm1(-std).div_(std)  # minus softplus'(rho) / std, which tends to -1 for small std
        return torch.div(shift, prior_std).mul_(grad), ratio.square().sub_(1).mul_(slope).mul_(-grad), None, None, None


def gaussian_kl_of_rho(
    mean: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, prior_log_std: Tensor
) -> Tensor:
    """The KL of weights with this mean and rho from Gaussians: tensors in the weights' shape, or of one number."""
    return _GaussianKL.apply(mean, rho, prior_mean, prior_std, prior_log_std)

"""Local reparameterisation (Kingma et al., 2015): Gaussian weights whose layers sample their outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelseed.fast.stand_in import StandIn, empty_of_shape


class LocalWeight(StandIn):
    """Independent Gaussian weights. Linear layers and convolutions sample each number of their output by itself.

    An output of a linear layer has the mean x mu^T and the variance x^2 (sigma^2)^T, and so has one of a convolution,
    with convolutions for products. Every example has its own noise, so a minibatch's gradient varies less than with one
    weight for all. Positions of one example are independent as well, which those of one drawn weight are not: each has
    the right distribution, not all of them together; so has a layer that is called again on another input. A bias of
    this kind adds its mean and variance. All other functions get one ordinary weight, drawn once.
    """

    mu: Tensor
    sigma: Tensor
    normal: Callable[[Tensor, torch.Size], Tensor]

    @classmethod
    def of(
        cls, mu: Tensor, sigma: Tensor, normal: Callable[[Tensor, torch.Size], Tensor], dense: Callable[[], Tensor]
    ) -> LocalWeight:
        """The weights as a tensor subclass.

        `normal(x, shape)` gives the noise of the output for an input, `dense()` the ordinary weight.
        """
        self = empty_of_shape(mu, mu.shape).as_subclass(cls)
        self.mu, self.sigma, self.normal, self.dense = mu, sigma, normal, dense
        return self


def _sampled(
    layer: Callable[..., Tensor], x: Tensor, weight: LocalWeight, bias: Tensor | None = None, *rest: Any, **options: Any
) -> Tensor:
    bias_mean, bias_variance = (bias.mu, bias.sigma.square()) if isinstance(bias, LocalWeight) else (bias, None)
    mean = layer(x, weight.mu, bias_mean, *rest, **options)
    variance = layer(x.square(), weight.sigma.square(), bias_variance, *rest, **options)
    # An input of zeros has no variance, at which the slope of a root is infinite.
    std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    return torch.addcmul(mean, std, weight.normal(x, mean.shape).to(mean.dtype))


LAYERS = (
    F.linear,
    *(torch.conv1d, torch.conv2d, torch.conv3d),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
)
LocalWeight.layers = {layer: partial(_sampled, layer) for layer in LAYERS}

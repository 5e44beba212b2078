"""Regression networks that say their noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.errors import ArgumentTypeError


class WithNoise(nn.Module):
    """A network of means with one learned standard deviation, for `likelihoods.Gaussian("output")`.

    Its last axis is the model's, which are the means, and then as many times softplus^-1 of the deviation. It is a
    parameter like any other, so that every method trains it with the network, and it is stored with it.

    >>> net = WithNoise(nn.Linear(3, 1))
    >>> net(torch.zeros(5, 3)).shape, round(net.std.item(), 6)
    (torch.Size([5, 2]), 1.0)
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.rho = nn.Parameter(torch.tensor([math.log(math.expm1(1.0))]))  # of standardised targets, at the start

    @property
    def std(self) -> Tensor:
        """The standard deviation of the noise."""
        return nn.functional.softplus(self.rho.detach())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Means, then what their deviation is made of."""
        mean = self.model(*args, **kwargs)
        if not isinstance(mean, Tensor):
            raise ArgumentTypeError(
                f"the network of means returned a {type(mean).__name__}; it must return a tensor of shape (N, 1)."
            )
        return self.beside(mean)

    def beside(self, mean: Tensor) -> Tensor:
        """These means, then what their deviation is made of."""
        return torch.cat([mean, self.rho.expand_as(mean)], -1)

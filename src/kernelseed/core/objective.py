"""The objective: the negative evidence lower bound per example, with its terms apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from kernelseed.core.likelihoods import Categorical, Likelihood
from kernelseed.core.network import Draw
from kernelseed.core.priors import Prior, ScaleMixture
from kernelseed.core.schedules import Moment, Schedule, uniform


@dataclass(frozen=True, eq=False)
class Terms:
    """loss = nll + kl_weight * kl / num_data. Call `loss.backward()`; log the rest."""

    loss: Tensor
    nll: Tensor
    kl: Tensor
    kl_weight: float


class ELBO(nn.Module):
    """Bayes by Backprop's loss for a draw and a minibatch.

    A module, because a likelihood may have noise to learn: give `loss.parameters()` to the optimizer then.

    >>> import torch, kernelseed as ks
    >>> net = ks.germinate(nn.Linear(20, 3))
    >>> loss = ks.ELBO(num_data=100)
    >>> terms = loss(net.draw(), torch.zeros(5, 20), torch.tensor([0, 1, 2, 0, 1]))
    >>> terms.loss.backward()
    """

    def __init__(
        self,
        num_data: int,
        prior: Prior | None = None,
        kl_weight: Schedule | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        super().__init__()
        if not num_data > 0:
            raise ValueError(f"num_data is {num_data}; it is the number of training examples: pass len(dataset).")
        self.num_data = num_data
        self.prior: Prior = prior or ScaleMixture()
        self.kl_weight = kl_weight or uniform()
        self.likelihood = likelihood or Categorical()

    def forward(self, draw: Draw, x: Any, y: Tensor, step: int | Moment | None = None) -> Terms:
        """The terms for one minibatch. `step` counts batches from 0, for schedules that depend on it."""
        nll = self.likelihood.nll(call(draw, x), y)
        kl = draw.kl(self.prior)
        moment = step if isinstance(step, Moment) else Moment(step, self.num_data)
        weight = self.kl_weight(replace(moment, num_weights=draw.num_weights))
        return Terms(nll + weight * kl / self.num_data, nll.detach(), kl.detach(), weight)


def call(draw: Any, x: Any) -> Any:
    """Run a draw on one batch's inputs: a tensor, a mapping of keyword arguments or a tuple of positional ones."""
    if isinstance(x, Mapping):
        return draw(**x)
    return draw(*x) if isinstance(x, (tuple, list)) else draw(x)

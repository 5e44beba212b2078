"""The objective: the negative evidence lower bound per example, and its terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kernelseed.core.likelihoods import Categorical, Likelihood
from kernelseed.core.network import Draw
from kernelseed.core.priors import Prior, ScaleMixture
from kernelseed.core.schedules import Moment, Schedule, as_schedule
from kernelseed.errors import ArgumentError, ArgumentTypeError


@dataclass(frozen=True, eq=False)
class Terms:
    """loss = nll + kl_weight * kl / num_data. Call `loss.backward()`; the other terms are for logging."""

    loss: Tensor
    nll: Tensor
    kl: Tensor
    kl_weight: float


class ELBO(nn.Module):
    """The loss of Bayes by Backprop for a draw and a minibatch.

    num_data    the number of training examples; the KL is divided by it once
    prior       default: the paper's scale mixture; a mapping has one for each weight, as `net.as_prior()` does
    kl_weight   a schedule, or a number for a constant one; 1 is the exact bound. Default: `schedules.settled()`
    likelihood  default: `likelihoods.Categorical()`. If it has learned noise, give `loss.parameters()` to the optimizer
                as well

    >>> import torch, kernelseed as ks
    >>> net, x, y = ks.germinate(nn.Linear(20, 3)), torch.zeros(5, 20), torch.tensor([0, 1, 2, 0, 1])
    >>> loss = ks.ELBO(num_data=100)
    >>> draw = net.draw()
    >>> terms = loss(draw, x, y)                # runs the draw
    >>> terms = loss.of(draw(x), y, draw)       # if you have the output already
    >>> terms = loss.with_nll(torch.nn.functional.cross_entropy(draw(x), y), draw)     # any loss of your own
    >>> terms.loss.backward()
    """

    def __init__(
        self,
        num_data: int,
        prior: Prior | Mapping[str, Prior] | None = None,
        kl_weight: Schedule | float | None = None,
        likelihood: Likelihood[Any] | None = None,
    ) -> None:
        super().__init__()
        if not num_data > 0:
            raise ArgumentError(f"num_data is {num_data}; it is the number of training examples: pass len(dataset).")
        if not (prior is None or isinstance(prior, Mapping) or callable(getattr(prior, "kl", None))):
            raise ArgumentTypeError(
                f"prior is a {type(prior).__name__}; give a prior, such as ks.priors.Gaussian(1.0), or one for each "
                "weight, such as net.as_prior()."
            )
        self.num_data = num_data
        self.prior: Prior | Mapping[str, Prior] = ScaleMixture() if prior is None else prior
        self.kl_weight = as_schedule(kl_weight)
        self.likelihood = Categorical() if likelihood is None else likelihood

    def forward(self, draw: Draw, x: Any, y: Any, step: int | Moment | None = None) -> Terms:
        """The terms for one minibatch. `step` counts batches from 0, for schedules that depend on it."""
        _require_draw(draw)
        return self.of(call(draw, x), y, draw, step)

    def of(self, output: Any, y: Any, draw: Draw, step: int | Moment | None = None) -> Terms:
        """The terms from the output of the draw for a minibatch."""
        return self.with_nll(self.likelihood.nll(output, y), draw, step)

    def with_nll(self, nll: Tensor, draw: Draw, step: int | Moment | None = None) -> Terms:
        """The terms from a negative log-likelihood of your own, averaged over examples.

        Use it for a transformer's `output.loss`, for the sum of the losses of several heads, or for any other loss.
        """
        _require_draw(draw)
        if not isinstance(nll, Tensor):
            raise ArgumentTypeError(
                f"nll is a {type(nll).__name__}; it must be a tensor, differentiable in the draw's weights: a "
                "transformer's output has a loss if its labels are given."
            )
        kl = draw.kl(self.prior)
        moment = step if isinstance(step, Moment) else Moment(step, self.num_data)
        weight = self.kl_weight(replace(moment, num_weights=draw.num_weights))
        return Terms(nll + weight * kl / self.num_data, nll.detach(), kl.detach(), weight)


def _require_draw(draw: object) -> None:
    if not isinstance(draw, Draw):
        raise ArgumentTypeError(
            f"draw is a {type(draw).__name__}; the loss needs one draw, for its output and its KL: pass net.draw()."
        )


def call(draw: Any, x: Any) -> Any:
    """Run a draw on the inputs of a batch: a tensor, a mapping of keyword arguments or a tuple of positional ones."""
    if isinstance(x, Mapping):
        return draw(**x)
    return draw(*x) if is_positional(x) else draw(x)


def is_positional(x: Any) -> bool:
    """Whether the inputs are several positional arguments. A packed sequence is a tuple, too, but a single argument."""
    return isinstance(x, (tuple, list)) and not isinstance(x, PackedSequence)

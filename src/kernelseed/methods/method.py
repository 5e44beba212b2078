"""What a method is: how it builds a network from a plain model, takes a training step, and leaves a posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kernelseed.core import Likelihood, Moment, Terms, call, likelihoods
from kernelseed.methods.settings import check_settings, setting


@dataclass(frozen=True)
class Engine:
    """How a training step is carried out; a training framework brings its own. The default is plain PyTorch."""

    backward: Callable[[Tensor], Any] = torch.Tensor.backward
    before_step: Callable[[], Any] = lambda: None
    """Called between the gradients and the optimizer's step: the place to clip."""


PLAIN = Engine()


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One of the systems that are compared. A value: its fields are the method's hyperparameters, each a `setting`.

    Training, prediction and reports use these functions and never ask which method it is:

    >>> import kernelseed as ks
    >>> method = ks.methods.make("ksn", delta=0.5)
    >>> net = method.build(nn.Linear(20, 3))
    >>> optimizer = method.optimizer(net, num_data=100)
    >>> x, y = torch.randn(8, 20), torch.randint(0, 3, (8,))
    >>> terms = method.step(net, optimizer, x, y, ks.schedules.Moment(0, 100))
    >>> ks.predict(method.posterior(net, optimizer), x, samples=4).probs.shape
    torch.Size([8, 3])
    """

    lr: float = setting(1e-3, "the learning rate", above=0, most=1_000_000)

    random: ClassVar[bool] = False
    """Whether prediction can average over draws."""
    distributed: ClassVar[bool] = True
    """Whether gradients are averaged over processes, so that many can train one network."""
    clips: ClassVar[bool] = True
    """Whether gradients can be clipped before they are used."""

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def build(self, model: nn.Module) -> nn.Module:
        """The network to train, from a plain model that stays as it is."""

    @abstractmethod
    def optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """What trains it."""

    @abstractmethod
    def step(self, net: nn.Module, optimizer: Any, x: Any, y: Tensor, moment: Moment, engine: Engine = PLAIN) -> Terms:
        """One update from one minibatch; returns the terms of its loss."""

    def posterior(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        """The network to predict with, as `ks.predict` takes it; to most methods, the one that was trained."""
        return net

    @abstractmethod
    def label(self, ensemble: bool) -> str:
        """The name in tables, of the average over draws or of the one network."""


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """Methods that are a loss: Adam does the rest."""

    def optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """Adam, as in the paper."""
        return torch.optim.Adam(net.parameters(), lr=self.lr, fused=True)

    @abstractmethod
    def terms(self, net: nn.Module, x: Any, y: Tensor, moment: Moment) -> Terms:
        """The loss and its parts."""

    def step(self, net: nn.Module, optimizer: Any, x: Any, y: Tensor, moment: Moment, engine: Engine = PLAIN) -> Terms:
        """Zero, forward, backward, step."""
        optimizer.zero_grad()
        terms = self.terms(net, x, y, moment)
        engine.backward(terms.loss)
        engine.before_step()
        optimizer.step()
        return terms


def likelihood_terms(net: nn.Module, x: Any, y: Tensor, likelihood: Likelihood | None = None) -> Terms:
    """The loss of a network without a KL."""
    nll = (likelihood or likelihoods.Categorical()).nll(call(net, x), y)
    return Terms(nll, nll.detach(), torch.zeros_like(nll.detach()), 0.0)

"""What a method is: how it builds a network from a plain model, takes a training step, and leaves a posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kernelseed.core import Likelihood, Moment, Terms, call, likelihoods
from kernelseed.errors import ArgumentError
from kernelseed.methods.settings import check_settings, setting


@dataclass(frozen=True)
class Engine:
    """How a training step is carried out; a training framework brings its own. The default is plain PyTorch."""

    backward: Callable[[Tensor], Any] = torch.Tensor.backward
    before_step: Callable[[], Any] = lambda: None
    """Called between the gradients and the optimizer's step: the place to clip."""


PLAIN = Engine()
CLASSES = likelihoods.Categorical()
"""What methods train by if they are given no other likelihood; it has no state."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One of the systems that are compared. A value: its fields are the method's hyperparameters, each a `setting`.

    Training, prediction and reports use these functions and never ask which method it is:

    >>> import kernelseed as ks
    >>> method = ks.methods.make("ksn", delta=0.5)
    >>> net = method.build(nn.Linear(20, 3))
    >>> optimizer = method.build_optimizer(net, num_data=100)
    >>> x, y = torch.randn(8, 20), torch.randint(0, 3, (8,))
    >>> terms = method.step(net, optimizer, x, y, ks.schedules.Moment(0, 100))
    >>> ks.predict(method.posterior(net, optimizer), x, samples=4).probs.shape
    torch.Size([8, 3])
    """

    lr: float = setting(1e-3, "the learning rate", above=0, most=1_000_000)

    random: ClassVar[bool] = False
    """Whether prediction can average over draws."""
    several: ClassVar[bool] = False
    """Whether it trains several networks, whose average is its one way to predict."""
    distributed: ClassVar[bool] = True
    """Whether gradients are averaged over processes, so that many can train one network."""
    clips: ClassVar[bool] = True
    """Whether gradients can be clipped before they are used."""
    is_optimizer: ClassVar[bool] = False
    """Whether it keeps statistics of its own steps, so that another optimizer or an average has no place in it."""

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def build(self, model: nn.Module) -> nn.Module:
        """The network to train, from a plain model that stays as it is."""

    def build_again(self, model: nn.Module, ranks: Mapping[str, int]) -> nn.Module:
        """A network of the shapes that `build` gave for a model whose weights are gone; `ranks` are those it had."""
        return self.build(model)

    @abstractmethod
    def build_optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """What trains it."""

    @abstractmethod
    def step(
        self,
        net: nn.Module,
        optimizer: Any,
        x: Any,
        y: Tensor,
        moment: Moment,
        engine: Engine = PLAIN,
        likelihood: Likelihood = CLASSES,
    ) -> Terms:
        """One update from one minibatch; returns the terms of its loss.

        likelihood  without parameters of its own: give `Gaussian("output")` a network that says its noise, such as
                    `ks.models.WithNoise`
        """

    @property
    def keeps_weights(self) -> bool:
        """Whether what it builds starts from the model's weights, so that a trained model is a better start."""
        return True

    def plain(self) -> Method | None:
        """What can train the plain network first, before `build` takes it over; None where that means nothing."""
        return None

    def posterior(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        """The network to predict with, as `ks.predict` takes it; to most methods, the one that was trained."""
        return net

    @abstractmethod
    def label(self, ensemble: bool) -> str:
        """The name in tables, of the average over draws or of the one network."""


Groups = list[dict[str, Any]]
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """Methods that are a loss: one of torch's optimizers does the rest, Adam as in the paper.

    Weight decay acts on every trained parameter, on biases, BatchNorm's and rhos too.
    """

    optimizer: str = setting("adam", "what takes the steps", choices=tuple(OPTIMIZERS))
    weight_decay: float = setting(
        0.0,
        "decay of all trained parameters: decoupled in adamw, a part of the gradient in adam and sgd",
        least=0,
        most=1_000_000,
    )
    momentum: float = setting(0.0, "the momentum of sgd", least=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and self.optimizer != "sgd":
            raise ArgumentError(
                f"momentum is {self.momentum} with optimizer {self.optimizer!r}, which has its own; take sgd, or do "
                "without momentum."
            )

    def build_optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """The one that is named, over all parameters."""
        settings = {"momentum": self.momentum} if self.optimizer == "sgd" else {}
        fused = all(parameter.is_floating_point() for parameter in net.parameters())  # not so if one is complex
        return OPTIMIZERS[self.optimizer](
            self.groups(net), lr=self.lr, weight_decay=self.weight_decay, fused=fused, **settings
        )

    def groups(self, net: nn.Module) -> Groups:
        """The parameters, those that share a learning rate together."""
        return [{"params": list(net.parameters())}]

    @abstractmethod
    def terms(self, net: nn.Module, x: Any, y: Tensor, moment: Moment, likelihood: Likelihood = CLASSES) -> Terms:
        """The loss and its parts."""

    def step(
        self,
        net: nn.Module,
        optimizer: Any,
        x: Any,
        y: Tensor,
        moment: Moment,
        engine: Engine = PLAIN,
        likelihood: Likelihood = CLASSES,
    ) -> Terms:
        """Zero, forward, backward, step."""
        return self.accumulate(net, optimizer, [(x, y)], moment, engine, likelihood)

    def accumulate(
        self,
        net: nn.Module,
        optimizer: Any,
        batches: Sequence[tuple[Any, Tensor]],
        moment: Moment,
        engine: Engine,
        likelihood: Likelihood = CLASSES,
    ) -> Terms:
        """One update from several minibatches; returns the terms of its loss.

        The loss is the mean over all examples. A random method draws anew for each minibatch, so that the loss is an
        average of evidence lower bounds; the KL is counted once.
        """
        optimizer.zero_grad()
        counts = [likelihood.counts(y).sum().item() for _, y in batches] if len(batches) > 1 else [1.0]
        total = sum(counts) or 1.0
        parts = []
        for (x, y), count in zip(batches, counts, strict=True):
            terms = self.terms(net, x, y, moment, likelihood)
            share = count / total
            engine.backward(terms.loss * share if len(batches) > 1 else terms.loss)
            parts.append((share, terms))
        engine.before_step()
        optimizer.step()
        if len(parts) == 1:
            return parts[0][1]
        loss, nll, kl = (
            torch.stack([share * getattr(terms, name).detach() for share, terms in parts]).sum()
            for name in ("loss", "nll", "kl")
        )
        return Terms(loss, nll, kl, parts[0][1].kl_weight)


def likelihood_terms(net: nn.Module, x: Any, y: Tensor, likelihood: Likelihood = CLASSES) -> Terms:
    """The loss of a network without a KL."""
    nll = likelihood.nll(call(net, x), y)
    return Terms(nll, nll.detach(), torch.zeros_like(nll.detach()), 0.0)

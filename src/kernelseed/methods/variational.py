"""Bayes by Backprop: the Bayesian network, the kernel seed network and its fixed-point twin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from kernelseed.core.conversion import Where, bayesianize, germinate
from kernelseed.core.network import BayesianModule
from kernelseed.core.objective import ELBO, Terms
from kernelseed.core.priors import Gaussian, Prior, ScaleMixture
from kernelseed.core.schedules import Moment, Schedule, automatic, blundell, constant, uniform, warmup
from kernelseed.methods.base import GradientMethod, likelihood_terms


@dataclass(frozen=True, kw_only=True)
class Variational(GradientMethod):
    """What all of them share: a prior, a KL schedule and where sigma starts.

    kl         "automatic" (min(1, N / weights)), "uniform", "blundell" or a number: a constant temperature
    kl_warmup  steps over which the KL's weight rises linearly from 0
    prior      "paper" or "blundell" (scale mixtures), or a number: a Gaussian of that standard deviation
    """

    rho_offset: float = -5.0
    kl: str | float = "automatic"
    kl_warmup: int = 0
    prior: str | float = "paper"
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.schedule()
        self.prior_value()

    def schedule(self) -> Schedule:
        """The KL schedule that `kl` and `kl_warmup` name."""
        named: dict[str | float, Schedule] = {"automatic": automatic(), "uniform": uniform(), "blundell": blundell()}
        schedule = named.get(self.kl) or constant(_number("kl", self.kl, named))
        return warmup(self.kl_warmup, schedule) if self.kl_warmup else schedule

    def prior_value(self) -> Prior:
        """The prior that `prior` names."""
        named: dict[str | float, Prior] = {"paper": ScaleMixture(), "blundell": ScaleMixture.blundell()}
        return named.get(self.prior) or Gaussian(_number("prior", self.prior, named))

    def terms(self, net: nn.Module, x: Any, y: Tensor, moment: Moment) -> Terms:
        """The evidence lower bound of one draw."""
        assert isinstance(net, BayesianModule)
        loss = ELBO(moment.num_data, self.prior_value(), self.schedule())
        return loss(net.draw(), x, y, moment)


@dataclass(frozen=True, kw_only=True)
class BNN(Variational):
    """The mean-field Bayesian network: a mean and a rho for every weight."""

    def build(self, model: nn.Module) -> nn.Module:
        """Means at the model's weights."""
        return bayesianize(model, rho_offset=self.rho_offset)

    def label(self, ensemble: bool) -> str:
        """The paper's names."""
        return "BNN-E" if ensemble else "BNN-P"


@dataclass(frozen=True, kw_only=True)
class FKSN(GradientMethod):
    """The fixed-point kernel seed network: germinated means, no sampling, no KL."""

    delta: float = 0.25
    min_rank: int = 16
    init: str = "model"

    def build(self, model: nn.Module) -> nn.Module:
        """Seeds for every weight but those of normalisation layers."""
        return germinate(model, self.delta, min_rank=self.min_rank, init=self.init, fixed=True)

    def terms(self, net: nn.Module, x: Any, y: Tensor, moment: Moment) -> Terms:
        """The negative log-likelihood."""
        return likelihood_terms(net, x, y)

    def label(self, ensemble: bool) -> str:
        """The paper's name, with delta."""
        return f"FKSN δ={self.delta:g}"


@dataclass(frozen=True, kw_only=True)
class KSN(Variational):
    """The kernel seed network."""

    delta: float = 0.25
    min_rank: int = 16
    init: str = "model"

    def build(self, model: nn.Module) -> nn.Module:
        """Seeds for every weight, or where `where` says."""
        return germinate(
            model,
            self.delta,
            min_rank=self.min_rank,
            rho_offset=self.rho_offset,
            init=self.init,
            where=self.where(model),
        )

    def where(self, model: nn.Module) -> Where | None:
        """All weights but those of normalisation layers."""
        return None

    def label(self, ensemble: bool) -> str:
        """The paper's names, with delta."""
        return f"KSN-{'E' if ensemble else 'P'} δ={self.delta:g}"


@dataclass(frozen=True, kw_only=True)
class LastLayerKSN(KSN):
    """A plain network whose last layer alone is a kernel seed."""

    delta: float = 1.0

    def where(self, model: nn.Module) -> Where:
        """The last of the weights of two or more axes, which is the head in every common architecture."""
        last = [name for name, p in model.named_parameters() if p.dim() >= 2][-1:]
        return lambda name, parameter: name in last

    def label(self, ensemble: bool) -> str:
        """The method's name."""
        return f"KSN-{'E' if ensemble else 'P'} last layer"


def _number(argument: str, value: str | float, named: Iterable[str | float]) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{argument} is {value!r}; allowed are {', '.join(map(str, named))} and a number.") from None

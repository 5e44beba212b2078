"""Bayes by Backprop: the Bayesian network, the kernel seed network and its fixed-point twin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from glob import escape
from typing import Any, ClassVar

from torch import Tensor, nn

from kernelseed.core import (
    ALLOCATIONS,
    BUDGET,
    DEFAULT_OVER,
    DELTA,
    ELBO,
    FACTOR_SIGMAS,
    INITS,
    MIN_RANK,
    OVER,
    RHO_OFFSET,
    BayesianModule,
    Likelihood,
    Moment,
    Prior,
    ScaleMixture,
    Schedule,
    Terms,
    Where,
    bayesianize,
    germinate,
    priors,
    schedules,
)
from kernelseed.errors import ArgumentError
from kernelseed.methods.method import CLASSES, GradientMethod, Groups, likelihood_terms
from kernelseed.methods.point import Baseline
from kernelseed.methods.settings import setting, settings_of

PRIORS: dict[str, Prior] = {"paper": ScaleMixture(), "blundell": ScaleMixture.blundell()}
SCHEDULES: dict[str, Schedule] = {
    "settled": schedules.settled(),
    "automatic": schedules.automatic(),
    "uniform": schedules.uniform(),
    "blundell": schedules.blundell(),
}


@dataclass(frozen=True, kw_only=True)
class Converted(GradientMethod):
    """Methods whose network is made of a plain one, trained or not."""

    def plain(self) -> Baseline | None:
        """The plain network, trained by the same optimizer."""
        shared = {name: getattr(self, name) for name in settings_of(Baseline)}
        return Baseline(**shared) if self.keeps_weights else None

    def groups(self, net: nn.Module) -> Groups:
        """The parameters by their learning rate."""
        assert isinstance(net, BayesianModule)
        return net.parameter_groups(self.lr, **self.factors())

    def factors(self) -> dict[str, float]:
        """What multiplies the learning rate of some parameters, as `parameter_groups` takes it."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Variational(Converted):
    """What all of them share: a prior, a KL schedule and where sigma starts.

    rho_lr  sigmas that learn as slowly as means do not settle within a training: their noise depends on its length
    kl      "settled" is min(1, .05 N / weights), "automatic" min(1, N / weights); a number is a constant weight
    prior   "paper" and "blundell" are scale mixtures; a number is the standard deviation of a Gaussian
    """

    rho_offset: float = setting(RHO_OFFSET, "where rho starts; sigma is softplus(rho)", least=-80, most=80)
    sigma: float | None = setting(
        None, "instead of rho_offset: sigma's start as a share of each weight's root mean square", above=0, most=100
    )
    rho_lr: float = setting(10.0, "the learning rate of what decides sigma, as a factor", least=0, most=1_000_000)
    kl: str | float = setting("settled", "the weight of the KL", choices=tuple(SCHEDULES), least=0, most=1_000_000)
    temperature: float = setting(
        1.0, "a factor of the KL's weight: below 1 sigmas are smaller", least=0, most=1_000_000
    )
    kl_warmup: int = setting(0, "steps over which the KL's weight rises linearly from 0", least=0)
    prior: str | float = setting("paper", "the prior of the weights", choices=tuple(PRIORS), least=1e-6, most=1_000_000)
    local: bool = setting(False, "sample each layer's outputs, not one weight for all (local reparameterisation)")
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma is not None and self.rho_offset != settings_of(type(self))["rho_offset"].default:
            raise ArgumentError(
                f"rho_offset is {self.rho_offset} with sigma {self.sigma}, which says where rho starts: leave one out."
            )

    def factors(self) -> dict[str, float]:
        """That of rhos, too."""
        return {**super().factors(), "rho_lr": self.rho_lr}

    def schedule(self) -> Schedule:
        """The KL schedule that `kl`, `temperature` and `kl_warmup` name."""
        schedule = SCHEDULES[self.kl] if self.kl in SCHEDULES else schedules.constant(float(self.kl))
        schedule = schedules.scaled(self.temperature, schedule)
        return schedules.warmup(self.kl_warmup, schedule) if self.kl_warmup else schedule

    def prior_value(self) -> Prior:
        """The prior that `prior` names."""
        return PRIORS[self.prior] if self.prior in PRIORS else priors.Gaussian(float(self.prior))

    def terms(self, net: nn.Module, x: Any, y: Tensor, moment: Moment, likelihood: Likelihood = CLASSES) -> Terms:
        """The evidence lower bound of one draw."""
        assert isinstance(net, BayesianModule)
        return elbo_of(self, moment.num_data, likelihood)(net.draw(local=self.local), x, y, moment)


@lru_cache
def elbo_of(method: Variational, num_data: int, likelihood: Likelihood = CLASSES) -> ELBO:
    """The loss of a method on so many examples, built once and not at every step."""
    return ELBO(num_data, method.prior_value(), method.schedule(), likelihood)


@dataclass(frozen=True, kw_only=True)
class Seeds(Converted):
    """What the kernel seed networks share: how large their seeds are, where they start, and how fast they learn."""

    delta: float | None = setting(
        None, f"the share of channels that a seed keeps (default: a budget of {BUDGET:g})", above=0, most=1
    )
    min_rank: int | None = setting(None, f"a floor under a seed's channels (default: {MIN_RANK})", least=1)
    budget: float | None = setting(
        None, "instead of delta: the share of the plain network's parameters that it may have", above=0, most=1000
    )
    allocation: str = setting("early", "how a budget is shared among the layers", choices=tuple(ALLOCATIONS))
    ranks: str | None = setting(None, "channels of seeds by name, such as layer1.*=64,layer4.*=104; the rest by delta")
    init: str = setting("model", "the start: the model's weights, or the paper's", choices=tuple(INITS))
    seed_lr: float = setting(1.0, "the seeds' learning rate, as a factor of lr", least=0, most=1_000_000)
    germinator_lr: float = setting(1.0, "the germinators' learning rate, as a factor of lr", least=0, most=1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sizes()

    def sizes(self) -> dict[str, Any]:
        """What decides how large the seeds are, as `germinate` takes it."""
        ranks = _parse_ranks(self.ranks) if self.ranks else None
        for name in ("delta", "min_rank", "ranks"):
            if (value := getattr(self, name)) is not None and self.budget is not None:
                raise ArgumentError(
                    f"{name} is {value!r} with budget {self.budget}, which decides all ranks: leave one of them out."
                )
        shares = {"delta": self.delta, "min_rank": self.min_rank, "ranks": ranks}
        return {**shares, "budget": self.budget, "allocation": self.allocation}

    def build_again(self, model: nn.Module, ranks: Mapping[str, int]) -> nn.Module:
        """With these ranks, whatever the weights would give."""
        text = ",".join(f"{escape(name)}={rank}" for name, rank in ranks.items())
        return replace(self, budget=None, delta=None, min_rank=None, ranks=text).build(model)

    def size_label(self) -> str:
        """How large the seeds are, for tables; empty for the default size."""
        if self.budget is not None:
            return f" budget {self.budget:g}"
        if self.delta is self.min_rank is self.ranks is None:
            return ""
        return " own ranks" if self.ranks else f" δ={DELTA if self.delta is None else self.delta:g}"

    def factors(self) -> dict[str, float]:
        """Those of seeds and germinators, too."""
        return {**super().factors(), "seed_lr": self.seed_lr, "germinator_lr": self.germinator_lr}

    @property
    def keeps_weights(self) -> bool:
        """Unless the paper's start forgets them."""
        return self.init == "model"


@dataclass(frozen=True, kw_only=True)
class BNN(Variational):
    """The mean-field Bayesian network: a mean and a rho for every weight."""

    def build(self, model: nn.Module) -> nn.Module:
        """Means at the model's weights."""
        return bayesianize(model, rho_offset=self.rho_offset, sigma=self.sigma)

    def label(self, ensemble: bool) -> str:
        """The paper's names."""
        return "BNN-E" if ensemble else "BNN-P"


@dataclass(frozen=True, kw_only=True)
class FKSN(Seeds):
    """The fixed-point kernel seed network: germinated means, no sampling, no KL."""

    def build(self, model: nn.Module) -> nn.Module:
        """Seeds for every weight but those of normalisation layers."""
        return germinate(model, **self.sizes(), init=self.init, fixed=True)

    def terms(self, net: nn.Module, x: Any, y: Tensor, moment: Moment, likelihood: Likelihood = CLASSES) -> Terms:
        """The negative log-likelihood."""
        return likelihood_terms(net, x, y, likelihood)

    def label(self, ensemble: bool) -> str:
        """The paper's name, with delta or what stands for it."""
        return f"FKSN{self.size_label()}"


@dataclass(frozen=True, kw_only=True)
class KSN(Seeds, Variational):
    """The kernel seed network."""

    over: str = setting(
        DEFAULT_OVER, "what is random: weights, or the factors with a sigma each or one a channel", choices=OVER
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        default = self.rho_offset == settings_of(type(self))["rho_offset"].default
        if self.sigma is None and self.over in FACTOR_SIGMAS and default:  # so that a run's settings say it
            object.__setattr__(self, "sigma", FACTOR_SIGMAS[self.over])
        if not default and self.over in FACTOR_SIGMAS:
            raise ArgumentError(
                f"rho_offset is {self.rho_offset} with over {self.over!r}, where sigma starts at a share of each "
                "factor: set sigma instead, or over to 'weights'."
            )
        if self.local and self.over != "weights":
            raise ArgumentError(
                f"local is True with over {self.over!r}; outputs are Gaussian where weights are: set over to 'weights'."
            )

    def build(self, model: nn.Module) -> nn.Module:
        """Seeds for every weight, or where `where` says."""
        return germinate(
            model,
            **self.sizes(),
            rho_offset=self.rho_offset,
            sigma=self.sigma,
            init=self.init,
            over=self.over,
            where=self.where(model),
        )

    def where(self, model: nn.Module) -> Where | None:
        """All weights but those of normalisation layers."""
        return None

    def label(self, ensemble: bool) -> str:
        """The paper's names, with delta or what stands for it."""
        over = "" if self.over == "weights" else f" {self.over}"
        return f"KSN-{'E' if ensemble else 'P'}{over}{self.size_label()}"


@dataclass(frozen=True, kw_only=True)
class LastLayerKSN(KSN):
    """A plain network whose last layer alone is a kernel seed."""

    over: str = "weights"

    def sizes(self) -> dict[str, Any]:
        """At full rank, unless it is said."""
        found = super().sizes()
        return found if self.budget is not None or self.delta is not None else {**found, "delta": 1.0}

    def where(self, model: nn.Module) -> Where:
        """The last of the weights of two or more axes, which is the head in every common architecture."""
        last = [p for _, p in model.named_parameters(remove_duplicate=False) if p.dim() >= 2][-1:]  # it may be tied
        return lambda name, parameter: any(parameter is p for p in last)

    def label(self, ensemble: bool) -> str:
        """The method's name."""
        return f"KSN-{'E' if ensemble else 'P'} last layer"


def _parse_ranks(text: str) -> dict[str, int]:
    """{"layer1.*": 64} from "layer1.*=64"."""
    ranks = {}
    for part in text.split(","):
        pattern, _, rank = part.strip().rpartition("=")
        if not pattern or not rank.isdecimal() or len(rank) > 9:
            raise ArgumentError(
                f"ranks is {text!r}, where {part!r} is no rank; write names and numbers, such as layer1.*=64."
            )
        ranks[pattern] = int(rank)
    return ranks

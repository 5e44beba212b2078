"""Variational continual learning (Nguyen et al., 2018): the posterior of one task is the prior of the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kernelseed.continual.approaches import Approach, FineTune
from kernelseed.continual.examples import Batch, Rows
from kernelseed.continual.heads import MultiHead
from kernelseed.core import (
    INITS,
    BayesianModule,
    KernelSeed,
    MeanField,
    Prior,
    WeightDistribution,
    convert,
    identity_factors,
    inverse_softplus,
    priors,
    seed_rank,
)
from kernelseed.errors import ArgumentError
from kernelseed.methods import setting

WEIGHTS = ("mean-field", "kernel-seed")
WAYS = ("learned", "identity")
Priors = Mapping[str, Prior]


@dataclass(frozen=True, kw_only=True)
class VCL(Approach[Priors]):
    """Every parameter is Bayesian, biases too; the loss is the evidence lower bound with the exact KL, weight 1.

    The first task starts from means at maximum likelihood and small standard deviations, every other from the posterior
    of the one before. Layers sample their outputs (local reparameterisation), so every example has its own noise.
    """

    weights: str = setting("mean-field", "a mean and a rho for each weight, or a kernel seed", choices=WEIGHTS)
    delta: float = setting(0.5, "the share of channels that a kernel seed keeps", above=0, most=1)
    min_rank: int = setting(16, "a floor under a kernel seed's channels", least=1)
    germinator: str = setting(
        "learned", "how a kernel seed's means are decoded; identity: delta 1, and the seed is the means", choices=WAYS
    )
    prior_std: float = setting(1.0, "the standard deviation of the first prior", above=0, most=1_000_000)
    start_epochs: int = setting(1, "passes over the first task by maximum likelihood, for the means' start", least=0)
    start_std: float = setting(0.02, "the standard deviations at the start of the first task", least=1e-6, most=10)
    rho_lr: float = setting(1e-2, "the learning rate of what decides the standard deviations", above=0, most=100)
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.germinator == "identity" and self.delta != 1:
            raise ArgumentError(
                f"germinator is 'identity' and delta {self.delta:g}; the seed is the means only at full rank: delta=1."
            )

    @property
    def label(self) -> str:
        """VCL, and of which weights."""
        return "VCL, mean-field" if self.weights == "mean-field" else f"VCL, kernel seeds δ={self.delta:g}"

    @property
    def start_rho(self) -> float:
        """The rho of `start_std`."""
        return float(inverse_softplus(torch.tensor(self.start_std, dtype=torch.float64)))

    def start(self) -> FineTune | None:
        """Maximum likelihood."""
        if not self.start_epochs:
            return None
        return FineTune(epochs=self.start_epochs, batch_size=self.batch_size, lr=self.lr)

    def build(self, model: MultiHead) -> BayesianModule:
        """Means at the model's parameters. Where a seed would take more numbers than a mean and a rho, it has these."""
        return convert(model, self._distribution, lambda name, parameter: True, least_axes=1)

    def _distribution(self, weight: Tensor) -> WeightDistribution:
        dense = MeanField(weight, self.start_rho)
        if self.weights == "mean-field" or weight.dim() < 2:
            return dense
        rank, fixed = seed_rank(weight.shape, self.delta, self.min_rank), self.germinator == "identity"
        factors = identity_factors(weight) if fixed else INITS["model"](weight, rank)
        seed = KernelSeed(*factors, self.start_rho, weight.shape)
        seed.mean_germinator.requires_grad_(not fixed)
        return min(seed, dense, key=lambda stored: sum(parameter.numel() for parameter in stored.parameters()))

    def groups(self, net: nn.Module) -> list[dict[str, Any]]:
        """Standard deviations have a learning rate of their own."""
        assert isinstance(net, BayesianModule)
        rates: dict[float, list[nn.Parameter]] = {}
        for weight in net.weights.values():
            for name, parameter in weight.named_parameters():
                if parameter.requires_grad:
                    rates.setdefault(self._rate(weight, name), []).append(parameter)
        for parameter in net.skeleton.parameters():  # numbers without axes, which are no weights
            if parameter.requires_grad:
                rates.setdefault(self.lr, []).append(parameter)
        return [{"params": parameters, "lr": rate} for rate, parameters in rates.items()]

    def _rate(self, weight: WeightDistribution, parameter: str) -> float:
        if isinstance(weight, KernelSeed) and parameter == "rho_germinator":
            # A rho is the sum of so many of its numbers, each times one of the seed; so it moves as fast as any other.
            size = weight.seed.detach().square().mean().sqrt().item()
            return self.rho_lr / (weight.rank * (size or 1.0))
        return self.rho_lr if parameter in weight.rhos else self.lr

    def before(self, net: nn.Module, model: MultiHead, task: int, memory: Priors | None) -> Priors:
        """The posterior as the prior; the first prior for what no task has trained yet.

        Heads of other tasks have themselves as the prior, so that their KL is 0 and they stay as they are.
        """
        assert isinstance(net, BayesianModule)
        first: dict[str, Prior] = dict.fromkeys(model.new_in(task, net.weights), priors.Gaussian(self.prior_std))
        return net.as_prior().decoded() | first

    def loss(self, net: nn.Module, batch: Batch, memory: Priors, num_data: int) -> Tensor:
        """The negative evidence lower bound per example."""
        assert isinstance(net, BayesianModule)
        draw = net.draw(local=True)
        return batch.nll(draw(batch.x)) + draw.kl(memory) / num_data

    def after(self, net: nn.Module, learned: Rows, memory: Priors, generator: torch.Generator) -> Priors:
        """The posterior as it is stored, for a coreset to start from."""
        assert isinstance(net, BayesianModule)
        return net.as_prior()

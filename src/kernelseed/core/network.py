"""A Bayesian network is a skeleton plus weight distributions. A draw is a value: concrete weights that you can call."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import Decoded, Prior, Sample
from kernelseed.core.joint import Joint, kl_terms
from kernelseed.core.noise import Noise
from kernelseed.core.posterior_prior import PosteriorPrior
from kernelseed.core.twin import Attributes, run_with
from kernelseed.core.values import Values
from kernelseed.core.weight_tree import WeightTree
from kernelseed.core.weights import WeightDistribution, decode_together, sample_locally, sample_together
from kernelseed.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Draw:
    """One set of concrete weights for a module. Call it like the module; ask it for its KL.

    >>> import kernelseed as ks
    >>> net = ks.germinate(nn.Linear(20, 30))
    >>> draw = net.draw()
    >>> draw(torch.zeros(5, 20)).shape, draw.kl(ks.ScaleMixture()).shape
    (torch.Size([5, 30]), torch.Size([]))
    """

    skeleton: nn.Module
    samples: Mapping[str, Sample] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    """Buffers that this draw uses instead of those of the skeleton, such as its own BatchNorm statistics."""
    attributes: Attributes = field(default_factory=dict)
    """What modules have set while this draw runs, such as BatchNorm's mode while its statistics are estimated."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with these weights and the given arguments."""
        return run_with(self.skeleton, self.operands(), self.attributes, args, kwargs)

    def operands(self) -> dict[str, Tensor]:
        """The tensors that the module runs with: weights, or subclasses that stand for them, and buffers."""
        return self._everywhere({name: sample.operand for name, sample in self.samples.items()}) | dict(self.buffers)

    def kl(self, prior: Prior | Mapping[str, Prior]) -> Tensor:
        """log q(w) - log P(w) at this draw, summed over all weights except fixed ones.

        prior   one for all weights, or one for each by name, such as `net.as_prior()`
        """
        if isinstance(prior, Mapping):
            random = [name for name, sample in self.samples.items() if not sample.fixed]
            if type(prior) is dict and (missing := [name for name in random if name not in prior]):
                raise ArgumentError(
                    f"prior has none for {missing[0]}; it is one for all weights or has one for each: "
                    f"{', '.join(random)}."
                )
            terms = [sample.kl(prior[name]) for name, sample in self.samples.items() if not sample.fixed]
        else:
            terms = kl_terms(self.samples.values(), prior)
        if terms:
            return torch.stack(terms).sum()
        anchor = next(iter(self.samples.values()), None)
        return torch.zeros(()) if anchor is None else anchor.value.new_zeros((), dtype=torch.float32)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The drawn weights, by every name that they have in the skeleton."""
        return self._everywhere({name: sample.value for name, sample in self.samples.items()})

    @property
    def num_weights(self) -> int:
        """The number of weights that have a distribution and therefore a KL."""
        return sum(sample.num_weights for sample in self.samples.values())

    def weights_only(self) -> Draw:
        """The same weights as contiguous tensors without graph and KL: less memory, and faster for many calls."""
        return replace(self, samples={name: sample.values_only() for name, sample in self.samples.items()})

    def _everywhere(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {alias: tensors[name] for alias, name in self.aliases.items()}


class BayesianModule(nn.Module):
    """The user's module with distributions in place of some of its parameters.

    A call makes a new draw in train mode and uses the posterior mean in eval mode. The converted parameters are removed
    from `skeleton`, so `parameters()`, the optimizer and a checkpoint contain exactly what is learned.
    """

    def __init__(
        self,
        skeleton: nn.Module,
        weights: Mapping[str, WeightDistribution],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.skeleton = skeleton
        self.weights = WeightTree(weights, aliases or {})
        self.training = skeleton.training  # not train(), so that a frozen BatchNorm stays frozen

    def draw(self, generator: torch.Generator | None = None, *, local: bool = False) -> Draw:
        """Draw every weight once. The draw is differentiable and independent of every other draw.

        local   linear layers and convolutions of Gaussian weights sample their outputs, with noise for each example,
                and not one weight for all (local reparameterisation). A minibatch's gradient varies less, for twice the
                products. It is for training; what it does to convolutions and other layers: `fast.LocalWeight`
        """
        sample = sample_locally if local else sample_together
        samples = sample(self.weights.values(), Noise.new(generator))
        return self.as_draw(dict(zip(self.weights, samples, strict=True)))

    def mean(self) -> Draw:
        """The posterior mean, as a draw."""
        return self.as_draw({name: weight.mean() for name, weight in self.weights.items()})

    def posterior(self) -> Posterior:
        """Decode every weight once, for any number of draws.

        It is of the network as it stands: what is stored as it is, such as a mean-field weight, is not copied.
        """
        decoded = dict(zip(self.weights, decode_together(self.weights.values()), strict=True))
        return Posterior(self.skeleton, decoded, self.weights.aliases)

    def as_prior(self) -> PosteriorPrior:
        """What is known now as the prior of what is learned next: see `PosteriorPrior`."""
        return PosteriorPrior(self.weights)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a new draw in train mode, the posterior mean in eval mode."""
        return (self.draw() if self.training else self.mean())(*args, **kwargs)

    def parameter_groups(
        self, lr: float, *, rho_lr: float = 10.0, seed_lr: float = 1.0, germinator_lr: float = 1.0
    ) -> list[dict[str, Any]]:
        """The parameters for an optimizer, by their learning rate.

        lr       the rate of everything that no factor below is for: means, biases, BatchNorm
        rho_lr   the factor for what decides standard deviations. They settle within a training only if they learn
                 faster than means; else how noisy a network is depends on how long it was trained
        seed_lr, germinator_lr   the factors for seeds and for germinators, with what decides their deviations

        >>> import kernelseed as ks
        >>> net = ks.germinate(nn.Linear(20, 30))
        >>> optimizer = torch.optim.Adam(net.parameter_groups(lr=1e-3))
        >>> [round(group["lr"], 4) for group in optimizer.param_groups]
        [0.001, 0.01]
        """
        groups: dict[float, list[nn.Parameter]] = {}
        if others := list(self.skeleton.parameters()):
            groups[1.0] = others
        for weight in self.weights.values():
            factors = ((weight.rhos, rho_lr), (weight.seeds, seed_lr), (weight.germinators, germinator_lr))
            for name, parameter in weight.named_parameters():
                factor = math.prod(each for names, each in factors if name in names)
                groups.setdefault(factor, []).append(parameter)
        return [{"params": parameters, "lr": factor * lr} for factor, parameters in groups.items()]

    def extra_repr(self) -> str:
        """The numbers of stored parameters and of weights."""
        stored = sum(p.numel() for p in self.weights.parameters())
        described = sum(w.num_weights for w in self.weights.values())
        return f"{len(self.weights)} distributions: {stored:,} parameters for {described:,} weights"

    def as_draw(self, samples: Mapping[str, Sample]) -> Draw:
        """A draw from the given samples, one for each weight."""
        return Draw(self.skeleton, samples, self.weights.aliases)


@dataclass(frozen=True, eq=False)
class Posterior:
    """All weights, decoded once for many draws. With the same generator it gives the same draw as the network."""

    skeleton: nn.Module
    decoded: Mapping[str, Decoded]
    aliases: Mapping[str, str]

    @functools.cached_property
    def _joint(self) -> Joint:
        return Joint(dict(enumerate(self.decoded.values())))

    def draw(self, generator: torch.Generator | None = None) -> Draw:
        """Sample every weight once."""
        return self._at(Noise.new(generator))

    def _at(self, noise: Noise) -> Draw:
        samples = self._joint.sample(noise)
        return Draw(self.skeleton, dict(zip(self.decoded, samples.values(), strict=True)), self.aliases)

    def draws(self, count: int, generator: torch.Generator | None = None) -> Iterator[Draw]:
        """As many draws of weights alone, without graph and KL: each is what `draw(generator).weights_only()` gives."""
        keys = Noise.keys(count, generator)
        if Values.supports(self.decoded):
            return (Draw(self.skeleton, samples, self.aliases) for samples in Values(self.decoded).draws(keys))
        return (self._at(Noise(key)).weights_only() for key in keys)

    def mean(self) -> Draw:
        """Every weight at its mean."""
        return Draw(self.skeleton, {name: g.at_mean() for name, g in self.decoded.items()}, self.aliases)

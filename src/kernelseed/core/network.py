"""A Bayesian network is a skeleton plus weight distributions; a draw is a value: weights that you can call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.core.distributions import Gaussian, Sample
from kernelseed.core.priors import Prior
from kernelseed.core.weights import WeightDistribution
from kernelseed.fast import fused
from kernelseed.fast.thin import fixed_samples


class WeightTree(nn.Module):
    """Weight distributions by parameter name, as a mapping.

    Stored as nested modules, so that the keys of a state dict read `weights.layer1.0.conv1.weight.seed`.
    A tied parameter is stored under its first name and found under all of them.
    """

    def __init__(self, weights: Mapping[str, WeightDistribution], aliases: Mapping[str, str]) -> None:
        super().__init__()
        self.names = tuple(weights)
        self.aliases = dict(aliases)
        for name, distribution in weights.items():
            *path, leaf = name.split(".")
            node: nn.Module = self
            for part in path:
                # Straight into _modules: a layer of the user's may be called "keys" or "items".
                node = node._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
            node._modules[leaf] = distribution

    def __getitem__(self, name: str) -> WeightDistribution:
        node: Any = self
        if name not in self:
            raise KeyError(f"no weight distribution {name!r}; there are: {', '.join(self.names)}")
        for part in self.aliases.get(name, name).split("."):
            node = node._modules[part]
        return node

    def __contains__(self, name: object) -> bool:
        return name in self.names or name in self.aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def items(self) -> Iterator[tuple[str, WeightDistribution]]:
        """Names and distributions, each distribution once."""
        return ((name, self[name]) for name in self.names)


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
    """Buffers that this draw uses instead of the skeleton's own, such as its BatchNorm statistics."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """The drawn weights under every name that the skeleton knows them by."""
        values = {name: sample.value for name, sample in self.samples.items()}
        return values | {alias: values[name] for alias, name in self.aliases.items()}

    @property
    def num_weights(self) -> int:
        """How many weights have a distribution, and so a share in the KL."""
        return sum(s.value.numel() for s in self.samples.values() if not s.fixed)

    def weights_only(self) -> Draw:
        """The same weights as plain values: no graph, no KL, no memory for either, and laid out for many calls."""
        values = {name: sample.value.detach().contiguous() for name, sample in self.samples.items()}
        return replace(self, samples={name: Gaussian(value, None).at_mean() for name, value in values.items()})

    def kl(self, prior: Prior) -> Tensor:
        """log q(w) - log P(w) at this draw, summed over all weights; fixed weights have none."""
        terms = [sample.kl(prior) for sample in self.samples.values() if not sample.fixed]
        if terms:
            return torch.stack(terms).sum()
        anchor = next(iter(self.samples.values()), None)
        return torch.zeros(()) if anchor is None else anchor.value.new_zeros((), dtype=torch.float32)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with these weights; arguments go through."""
        operands = {name: sample.operand for name, sample in self.samples.items()}
        operands |= {alias: operands[name] for alias, name in self.aliases.items()}
        return call_with(self.skeleton, {**operands, **self.buffers}, *args, **kwargs)


def call_with(skeleton: nn.Module, tensors: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """Run the skeleton with these parameters and buffers in place; it is itself again afterwards.

    Stacked tensors run under `torch.func.vmap`, which is how many draws of a small network become one call.
    """
    with _recurrent_layers_reading_their_parameters(skeleton):
        return torch.func.functional_call(skeleton, dict(tensors), args, kwargs, tie_weights=False)


@contextmanager
def _recurrent_layers_reading_their_parameters(skeleton: nn.Module) -> Iterator[None]:
    """Recurrent layers run on a list of weights that they keep beside their parameters.

    It has to be read anew when the layer runs, and must not outlive the call: a network that holds on to a draw
    could be neither copied nor freed.
    """
    layers = [module for module in skeleton.modules() if isinstance(module, nn.RNNBase)]
    hooks = [layer.register_forward_pre_hook(_read_weights) for layer in layers]
    try:
        yield
    finally:
        for layer, hook in zip(layers, hooks, strict=True):
            hook.remove()
            layer._init_flat_weights()


def _read_weights(layer: nn.RNNBase, _: Any) -> None:
    layer._init_flat_weights()


class BayesianModule(nn.Module):
    """The user's module with distributions in place of some of its parameters.

    Calling it in train mode makes a fresh draw, in eval mode uses the posterior mean. The converted parameters are
    gone from `skeleton`, so `parameters()`, the optimizer and a checkpoint see exactly what is learned.
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
        self.training = skeleton.training  # its layers keep the modes they have: a frozen BatchNorm stays frozen

    def posterior(self) -> Posterior:
        """Germinate once: every weight's Gaussian, from which any number of draws can be made."""
        return Posterior(self.skeleton, {n: w() for n, w in self.weights.items()}, self.weights.aliases)

    def draw(self, generator: torch.Generator | None = None) -> Draw:
        """Germinate and sample once. Differentiable, and independent of every other draw."""
        weights = dict(self.weights.items())
        samples = fixed_samples(weights) or fused.draw(weights, generator)
        if samples is None:
            return self.posterior().draw(generator)
        return Draw(self.skeleton, samples, self.weights.aliases)

    def mean(self) -> Draw:
        """The posterior mean, as a draw."""
        samples = fixed_samples(dict(self.weights.items()))
        return self.posterior().mean() if samples is None else Draw(self.skeleton, samples, self.weights.aliases)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A fresh draw in train mode, the posterior mean in eval mode."""
        return (self.draw() if self.training else self.mean())(*args, **kwargs)

    def extra_repr(self) -> str:
        """Parameters stored against weights described."""
        stored = sum(p.numel() for p in self.weights.parameters())
        described = sum(w.num_weights for _, w in self.weights.items())
        return f"{len(self.weights)} distributions: {stored:,} parameters for {described:,} weights"


@dataclass(frozen=True, eq=False)
class Posterior:
    """Every weight's Gaussian, decoded once."""

    skeleton: nn.Module
    gaussians: Mapping[str, Gaussian]
    aliases: Mapping[str, str]

    def draw(self, generator: torch.Generator | None = None) -> Draw:
        """Sample every weight once."""
        samples = fused.resample(self.gaussians, generator)
        if samples is None:
            samples = {name: g.sample(generator) for name, g in self.gaussians.items()}
        return Draw(self.skeleton, samples, self.aliases)

    def mean(self) -> Draw:
        """Every weight at its mean."""
        return Draw(self.skeleton, {n: g.at_mean() for n, g in self.gaussians.items()}, self.aliases)

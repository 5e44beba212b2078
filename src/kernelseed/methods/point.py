"""Networks with one value for every weight: the baseline, dropout, and an ensemble of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kernelseed.core import CHANNELWISE, ELEMENTWISE, Likelihood, Moment, Terms, deep_copy
from kernelseed.errors import ArgumentError
from kernelseed.methods.method import CLASSES, GradientMethod, likelihood_terms
from kernelseed.methods.settings import setting


@dataclass(frozen=True, kw_only=True)
class Baseline(GradientMethod):
    """The plain network."""

    def build(self, model: nn.Module) -> nn.Module:
        """A copy."""
        return deep_copy(model)

    def terms(self, net: nn.Module, x: Any, y: Tensor, moment: Moment, likelihood: Likelihood = CLASSES) -> Terms:
        """The negative log-likelihood."""
        return likelihood_terms(net, x, y, likelihood)

    def label(self, ensemble: bool) -> str:
        """The paper's name."""
        return "Baseline"


@dataclass(frozen=True, kw_only=True)
class Dropout(Baseline):
    """The plain network with dropout: the one network is the paper's "Baseline DR", the average MC-Drop."""

    rate: float = setting(0.1, "the share of activations that is dropped", above=0, below=1)
    random: ClassVar[bool] = True

    def build(self, model: nn.Module) -> nn.Module:
        """A copy, with the rate set on the dropout layers that the model has."""
        net = deep_copy(model)
        layers = [m for m in net.modules() if isinstance(m, ELEMENTWISE + CHANNELWISE)]
        if not layers:
            raise ArgumentError(
                f"model is a {type(model).__name__} without a dropout layer to set to {self.rate}; add nn.Dropout(0.0) "
                "where units are to be dropped."
            )
        for layer in layers:
            layer.p = self.rate
        return net

    def label(self, ensemble: bool) -> str:
        """The paper's names."""
        return f"MC-Drop {self.rate:g}" if ensemble else f"Baseline DR {self.rate:g}"


@dataclass(frozen=True, kw_only=True)
class Ensemble(GradientMethod):
    """A deep ensemble: plain networks from different starts, trained side by side on the same batches."""

    members: int = setting(5, "how many networks the ensemble has", least=1, most=1000)
    several: ClassVar[bool] = True

    @property
    def keeps_weights(self) -> bool:
        """Not so: members need different starts."""
        return False

    def build(self, model: nn.Module) -> nn.Module:
        """The model as it is, and as many more with fresh weights as it takes."""
        return nn.ModuleList([model_with_fresh_weights(model) if i else deep_copy(model) for i in range(self.members)])

    def terms(self, net: nn.Module, x: Any, y: Tensor, moment: Moment, likelihood: Likelihood = CLASSES) -> Terms:
        """The members' losses, summed: their parameters are apart, so each gets its own gradient."""
        assert isinstance(net, nn.ModuleList)
        parts = [likelihood_terms(member, x, y, likelihood) for member in net]
        nll = torch.stack([part.nll for part in parts]).mean()
        return Terms(torch.stack([part.loss for part in parts]).sum(), nll, torch.zeros_like(nll), 0.0)

    def label(self, ensemble: bool) -> str:
        """Its size."""
        return f"Ensemble of {self.members}"


@torch.no_grad()
def model_with_fresh_weights(model: nn.Module) -> nn.Module:
    """Another initialisation of any freshly initialised model: its independent weights, shuffled within each tensor.

    Zeros stay where they are, such as those of an embedding's padding, and so does what is not trained.
    """
    fresh = deep_copy(model)
    for parameter in fresh.parameters():
        if not parameter.requires_grad:
            continue
        flat = parameter.flatten()
        drawn = flat.nonzero()[:, 0]
        flat[drawn] = flat[drawn[torch.randperm(len(drawn), device=flat.device)]]
        parameter.copy_(flat.view_as(parameter))
    return fresh

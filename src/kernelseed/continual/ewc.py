"""Elastic weight consolidation (Kirkpatrick et al., 2017): what mattered to a task is held where it was."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed.continual.approaches import Approach
from kernelseed.continual.examples import Batch, Rows, batch_of
from kernelseed.continual.heads import MultiHead
from kernelseed.methods import setting

Named = dict[str, Tensor]
Anchors = list[tuple[Named, Named]]
"""Of each earlier task: the parameters after it, and the diagonal of its Fisher information, summed over its data."""


@dataclass(frozen=True, kw_only=True)
class EWC(Approach[Anchors]):
    """The loss adds strength / 2 * F (w - w*)^2 for each earlier task; F is its Fisher information over its data."""

    strength: float = setting(1.0, "the penalty's factor; 1 is a Laplace approximation's", least=0, most=1e9)
    fisher_examples: int = setting(2000, "examples of a task from which its Fisher information is estimated", least=1)

    label = "EWC"

    def before(self, net: nn.Module, model: MultiHead, task: int, memory: Anchors | None) -> Anchors:
        """The anchors of earlier tasks."""
        return memory or []

    def loss(self, net: nn.Module, batch: Batch, memory: Anchors, num_data: int) -> Tensor:
        """The negative log-likelihood, and the penalties per example."""
        nll = batch.nll(net(batch.x))
        return nll + 0.5 * self.strength * penalty(dict(net.named_parameters()), memory) / num_data if memory else nll

    def after(self, net: nn.Module, learned: Rows, memory: Anchors, generator: torch.Generator) -> Anchors:
        """One anchor more."""
        chosen = torch.randperm(len(learned), generator=generator)[: self.fisher_examples]
        batch = batch_of([learned], [chosen])
        fisher = diagonal_fisher(net, batch.x, learned.columns, generator)
        here = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
        return [*memory, (here, {name: len(learned) * mean for name, mean in fisher.items()})]


def penalty(parameters: Named, anchors: Anchors) -> Tensor:
    """The sum over tasks and parameters of F (w - w*)^2."""
    return torch.stack(
        [
            (fisher[name] * (parameter - place[name]).square()).sum()
            for place, fisher in anchors
            for name, parameter in parameters.items()
        ]
    ).sum()


def diagonal_fisher(net: nn.Module, x: Tensor, columns: slice, generator: torch.Generator) -> Named:
    """The mean over examples of the squared gradients of log p(y | x), each y drawn from the network's own p."""
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}

    def log_prob(weights: Named, row: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(net, weights, (row[None],))[:, columns]
        return -F.cross_entropy(logits, label[None])

    with torch.no_grad():
        labels = torch.multinomial(net(x)[:, columns].softmax(1), 1, generator=generator)[:, 0]
    of_each = torch.func.vmap(torch.func.grad(log_prob), (None, 0, 0))
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for rows, drawn in zip(x.split(_CHUNK), labels.split(_CHUNK), strict=True):
        for name, gradients in of_each(parameters, rows, drawn).items():
            total[name] += gradients.square().sum(0)
    return {name: squares / len(x) for name, squares in total.items()}


_CHUNK = 50
"""Examples whose gradients are in memory at a time."""

"""Natural-gradient methods: the optimizer's own statistics are the posterior's precision.

What they leave is a mean-field Gaussian like any other, so the posterior is a `BayesianModule`, and prediction,
export and storage treat it as one.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed import optim
from kernelseed.batchnorm import batch_norms, estimate_statistics
from kernelseed.conversion import bayesianize
from kernelseed.distributions import inverse_softplus
from kernelseed.methods.base import PLAIN, Engine, Method, likelihood_terms
from kernelseed.network import call_with
from kernelseed.objective import Terms
from kernelseed.schedules import Moment
from kernelseed.weights import MeanField


@dataclass(frozen=True, kw_only=True)
class NaturalGradient(Method):
    """What they share: the plain network is trained, with noise in its weights that the optimizer puts there.

    prior_precision  of the Gaussian prior N(0, 1 / prior_precision)
    init_std         the posterior's standard deviation at the start; a deep network learns nothing under large noise
    samples          draws a step
    """

    prior_precision: float = 1.0
    init_std: float = 0.01
    samples: int = 10
    random: ClassVar[bool] = True
    distributed: ClassVar[bool] = False
    title: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.init_std > 0:
            raise ValueError(f"init_std is {self.init_std}; a standard deviation must be positive.")

    def build(self, model: nn.Module) -> nn.Module:
        """A copy."""
        return copy.deepcopy(model)

    @abstractmethod
    def stds(self, optimizer: Any) -> dict[Tensor, Tensor]:
        """The posterior's standard deviation for each trained parameter."""

    @torch.no_grad()
    def posterior(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        """The same network with a Gaussian for each trained parameter, biases and BatchNorm's included."""
        stds = self.stds(optimizer)
        trained = {name: stds[p] for name, p in net.named_parameters() if p in stds}
        posterior = bayesianize(net, where=lambda name, parameter: name in trained)
        for name, std in trained.items():
            weight = posterior.weights[name]
            assert isinstance(weight, MeanField)
            weight.rho.copy_(inverse_softplus(std))
        return posterior

    def label(self, ensemble: bool) -> str:
        """The optimizer's name; E for the average over draws, P for the mean."""
        return f"{self.title}-{'E' if ensemble else 'P'}"


@dataclass(frozen=True, kw_only=True)
class Vadam(NaturalGradient):
    """Vadam, which the paper trained its VOGN rows with."""

    lr: float = 1e-2
    title: ClassVar[str] = "Vadam"

    def optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """Over all parameters."""
        return optim.Vadam(
            net.parameters(),
            num_data=num_data,
            lr=self.lr,
            prior_precision=self.prior_precision,
            init_precision=self.prior_precision + self.init_std**-2,
            samples=self.samples,
        )

    def step(self, net: nn.Module, optimizer: Any, x: Any, y: Tensor, moment: Moment, engine: Engine = PLAIN) -> Terms:
        """The optimizer draws and differentiates."""
        return _terms(optimizer.step(lambda: likelihood_terms(net, x, y).loss))

    def stds(self, optimizer: Any) -> dict[Tensor, Tensor]:
        """1 / sqrt(N s + prior precision)."""
        return _stds(optimizer)


@dataclass(frozen=True, kw_only=True)
class VOGN(NaturalGradient):
    """VOGN proper, with squared gradients of single examples.

    BatchNorm normalises by the statistics of the batch at each draw, held constant in the examples' gradients: they
    would not be gradients of single examples otherwise. `lr` is relative to the start's precision, as IVON's is: the
    first steps are those of gradient descent at this rate, whatever the size of the data.
    """

    lr: float = 0.3
    samples: int = 1
    chunk: int = 32
    """Examples differentiated at once: chunk x parameters in memory."""
    title: ClassVar[str] = "VOGN"

    def optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """Over all parameters, with the momentum of the large-scale version."""
        init_precision = self.prior_precision + self.init_std**-2
        return optim.VOGN(
            net.parameters(),
            num_data=num_data,
            lr=self.lr * init_precision / num_data,
            betas=(0.9, 0.999),
            prior_precision=self.prior_precision,
            init_precision=init_precision,
            samples=self.samples,
        )

    def step(self, net: nn.Module, optimizer: Any, x: Any, y: Tensor, moment: Moment, engine: Engine = PLAIN) -> Terms:
        """Gradient moments by vmap over the examples."""
        return _terms(optimizer.step(moments=lambda: example_moments(net, x, y, self.chunk)))

    def stds(self, optimizer: Any) -> dict[Tensor, Tensor]:
        """1 / sqrt(P)."""
        return _stds(optimizer)


@dataclass(frozen=True, kw_only=True)
class IVON(NaturalGradient):
    """IVON (Shen et al., 2024), from the package ivon-opt: the modern successor."""

    lr: float = 0.1
    samples: int = 1
    title: ClassVar[str] = "IVON"

    def optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """Over all parameters; its weight decay is the prior's precision over N."""
        try:
            import ivon
        except ImportError:
            raise ImportError('method "ivon" needs the package ivon-opt: pip install --no-deps ivon-opt') from None
        return ivon.IVON(
            net.parameters(),
            lr=self.lr,
            ess=num_data,
            hess_init=self.init_std**-2 / num_data,
            beta2=1 - 1e-4,
            weight_decay=self.prior_precision / num_data,
            mc_samples=self.samples,
        )

    def step(self, net: nn.Module, optimizer: Any, x: Any, y: Tensor, moment: Moment, engine: Engine = PLAIN) -> Terms:
        """Draw, differentiate, restore, as many times as it samples; then step."""
        ivon = getattr(optimizer, "optimizer", optimizer)  # the optimizer itself, where a framework wraps it
        ivon.current_step = moment.require_step("ivon")  # which its state_dict leaves out
        losses = []
        for _ in range(self.samples):
            with ivon.sampled_params(train=True):
                optimizer.zero_grad()
                terms = likelihood_terms(net, x, y)
                engine.backward(terms.loss)
            losses.append(terms.nll)
        engine.before_step()
        optimizer.step()
        return _terms(torch.stack(losses).mean())

    def stds(self, optimizer: Any) -> dict[Tensor, Tensor]:
        """1 / sqrt(ess (hess + weight decay)), cut from the flat vector that it keeps."""
        stds: dict[Tensor, Tensor] = {}
        for group in optimizer.param_groups:
            flat = (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt()
            sizes = [p.numel() for p in group["params"]]
            for p, std in zip(group["params"], flat.split(sizes), strict=True):
                stds[p] = std.view_as(p)
        return stds


def _terms(loss: Tensor) -> Terms:
    loss = loss.detach()
    return Terms(loss, loss, torch.zeros_like(loss), 0.0)


def _stds(optimizer: optim.Vadam | optim.VOGN) -> dict[Tensor, Tensor]:
    return {p: optimizer.std(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}


def example_moments(
    net: nn.Module, x: Tensor, y: Tensor, chunk: int
) -> tuple[Tensor, dict[Tensor, tuple[Tensor, Tensor]]]:
    """The batch's mean loss, and for each parameter the means of the examples' gradients and of their squares."""
    parameters = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    buffers = _batch_statistics(net, x)

    def loss(tensors: dict[str, Tensor], xi: Tensor, yi: Tensor) -> Tensor:
        return F.cross_entropy(call_with(net, {**tensors, **buffers}, xi[None]), yi[None])

    gradients = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
    total = torch.zeros((), device=x.device)
    sums = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in parameters.items()}
    with _batch_norm_in_eval(net):
        for xs, ys in zip(x.split(chunk), y.split(chunk), strict=True):
            grads, losses = gradients(parameters, xs, ys)
            total += losses.sum()
            for name, g in grads.items():
                first, second = sums[name]
                first += g.sum(0)
                second += g.square().sum(0)
    n = len(x)
    owners: dict[str, Tensor] = dict(net.named_parameters())
    return total / n, {owners[name]: (first / n, second / n) for name, (first, second) in sums.items()}


def _batch_statistics(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """BatchNorm buffers for this batch at this draw; the net's own running averages follow as in training."""
    if not batch_norms(net):
        return {}
    with torch.no_grad():
        net(x)
    return estimate_statistics(net, lambda buffers, batch: call_with(net, buffers, batch), [x])


@contextmanager
def _batch_norm_in_eval(net: nn.Module) -> Iterator[None]:
    layers = list(batch_norms(net).values())
    modes = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.training = False
        yield
    finally:
        for layer, training in zip(layers, modes, strict=True):
            layer.training = training

"""Natural-gradient methods: the optimizer's own statistics are the posterior's precision.

What they leave is a mean-field Gaussian like any other, so the posterior is a `BayesianModule`, and prediction,
export and storage treat it as one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kernelseed import optim
from kernelseed.core import (
    Likelihood,
    MeanField,
    Moment,
    Terms,
    batch_norms,
    bayesianize,
    call_with,
    deep_copy,
    inverse_softplus,
    places,
    whole,
)
from kernelseed.errors import ArgumentError, ArgumentTypeError, MissingPackageError
from kernelseed.methods.method import CLASSES, PLAIN, Engine, Method, likelihood_terms
from kernelseed.methods.settings import setting


@dataclass(frozen=True, kw_only=True)
class NaturalGradient(Method):
    """What they share: the plain network is trained, with noise in its weights that the optimizer puts there.

    `init_std` is small, because a deep network learns nothing under large noise.
    """

    prior_precision: float = setting(1.0, "1 / variance of the Gaussian prior", least=1e-12, most=10**12)
    init_std: float = setting(0.01, "the posterior's standard deviation at the start", least=1e-12, most=1_000_000)
    train_samples: int = setting(10, "draws in one training step", least=1, most=10_000)
    random: ClassVar[bool] = True
    distributed: ClassVar[bool] = False
    is_optimizer: ClassVar[bool] = True
    title: ClassVar[str]

    def build(self, model: nn.Module) -> nn.Module:
        """A copy."""
        return deep_copy(model)

    @abstractmethod
    def stds(self, optimizer: Any) -> dict[Tensor, Tensor]:
        """The posterior's standard deviation for each trained parameter."""

    @torch.no_grad()
    def posterior(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        """The same network with a Gaussian for each trained parameter, biases and BatchNorm's included.

        A parameter of no axes, a lone number, stays at its mean.
        """
        stds = self.stds(optimizer)
        trained = {name: stds[p] for name, p in net.named_parameters() if p in stds}
        posterior = bayesianize(net, where=lambda name, parameter: name in trained)
        for name, weight in posterior.weights.items():
            own = whole(weight)
            assert isinstance(own, MeanField)
            own.rho.copy_(inverse_softplus(trained[name]))
        return posterior

    def label(self, ensemble: bool) -> str:
        """The optimizer's name; E for the average over draws, P for the mean."""
        return f"{self.title}-{'E' if ensemble else 'P'}"


@dataclass(frozen=True, kw_only=True)
class Vadam(NaturalGradient):
    """Vadam, which the paper trained its VOGN rows with."""

    title: ClassVar[str] = "Vadam"
    clips: ClassVar[bool] = False

    def build_optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """Over all parameters."""
        return optim.Vadam(
            net.parameters(),
            num_data=num_data,
            lr=self.lr,
            prior_precision=self.prior_precision,
            init_precision=self.prior_precision + self.init_std**-2,
            train_samples=self.train_samples,
        )

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
        """The optimizer draws and differentiates."""
        return _terms(optimizer.step(lambda: likelihood_terms(net, x, y, likelihood).loss))

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
    train_samples: int = 1
    chunk: int = setting(32, "examples differentiated at once, which takes chunk x parameters in memory", least=1)
    title: ClassVar[str] = "VOGN"
    clips: ClassVar[bool] = False

    def build_optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """Over all parameters, with the momentum of the large-scale version."""
        init_precision = self.prior_precision + self.init_std**-2
        return optim.VOGN(
            net.parameters(),
            num_data=num_data,
            lr=self.lr * init_precision / num_data,
            betas=(0.9, 0.999),
            prior_precision=self.prior_precision,
            init_precision=init_precision,
            train_samples=self.train_samples,
        )

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
        """Gradient moments by vmap over the examples."""
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f'x is a {type(x).__name__}; method "vogn" splits it into rows: give one tensor.')
        return _terms(optimizer.step(moments=lambda: example_moments(net, x, y, self.chunk, likelihood)))

    def stds(self, optimizer: Any) -> dict[Tensor, Tensor]:
        """1 / sqrt(P)."""
        return _stds(optimizer)


@dataclass(frozen=True, kw_only=True)
class IVON(NaturalGradient):
    """IVON (Shen et al., 2024), from the package ivon-opt: the modern successor."""

    lr: float = 0.1
    train_samples: int = 1
    title: ClassVar[str] = "IVON"

    def build_optimizer(self, net: nn.Module, num_data: int) -> torch.optim.Optimizer:
        """Over all that is trained, since it puts noise on whatever it is given; its weight decay is the prior's."""
        try:
            import ivon
        except ImportError:
            raise MissingPackageError(
                'method "ivon" needs the package ivon-opt: pip install --no-deps ivon-opt.'
            ) from None
        return ivon.IVON(
            [p for p in net.parameters() if p.requires_grad],
            lr=self.lr,
            ess=num_data,
            hess_init=self.init_std**-2 / num_data,
            beta2=1 - 1e-4,
            weight_decay=self.prior_precision / num_data,
            mc_samples=self.train_samples,
        )

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
        """Draw, differentiate, restore, as many times as it samples; then step."""
        ivon = getattr(optimizer, "optimizer", optimizer)  # the optimizer itself, where a framework wraps it
        # Its state_dict leaves the step out.
        ivon.current_step = moment.require_step('method "ivon"', "Moment(step, num_data)")
        losses = []
        for _ in range(self.train_samples):
            with _restoring(ivon), ivon.sampled_params(train=True):
                optimizer.zero_grad()
                terms = likelihood_terms(net, x, y, likelihood)
                engine.backward(terms.loss)
                engine.before_step()  # here, because it keeps each draw's gradient and never reads .grad again
                for group in ivon.param_groups:
                    for p in group["params"]:
                        if p.grad is None:  # the loss does not reach it; IVON can't do without
                            p.grad = torch.zeros_like(p)
            losses.append(terms.nll)
        loss = torch.stack(losses).mean()
        # Without a closure of ours, Lightning gives one of its own, whose None IVON would add up.
        optimizer.step(lambda: loss)
        return _terms(loss)

    def stds(self, optimizer: Any) -> dict[Tensor, Tensor]:
        """1 / sqrt(ess (hess + weight decay)), cut from the flat vector that it keeps."""
        stds: dict[Tensor, Tensor] = {}
        for group in optimizer.param_groups:
            flat = (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt()
            sizes = [p.numel() for p in group["params"]]
            for p, std in zip(group["params"], flat.split(sizes), strict=True):
                stds[p] = std.view_as(p)
        return stds


@contextmanager
def _restoring(ivon: Any) -> Iterator[None]:
    """IVON puts the mean back where a draw's block ends, but not where it raises; this does."""
    parameters = [p for group in ivon.param_groups for p in group["params"]]
    means = [p.data for p in parameters]  # which a draw replaces and does not write to
    try:
        yield
    except BaseException:
        for p, mean in zip(parameters, means, strict=True):
            p.data = mean
        ivon._reset_samples()  # the gradients of a step that never came to be
        raise


def _terms(loss: Tensor) -> Terms:
    loss = loss.detach()
    return Terms(loss, loss, torch.zeros_like(loss), 0.0)


def _stds(optimizer: optim.Vadam | optim.VOGN) -> dict[Tensor, Tensor]:
    return {p: optimizer.std(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}


def example_moments(
    net: nn.Module, x: Tensor, y: Tensor, chunk: int, likelihood: Likelihood = CLASSES
) -> tuple[Tensor, dict[Tensor, tuple[Tensor, Tensor]]]:
    """The batch's loss, and for each parameter the means of the examples' gradients and of their squares.

    The loss of the batch is the mean over examples, where each counts as the likelihood says.
    """
    held = {names[0]: (p, names) for p, names in places(net).values() if p.requires_grad}
    parameters = {name: p.detach() for name, (p, _) in held.items()}
    buffers = _batch_statistics(net, x)

    def loss(tensors: dict[str, Tensor], xi: Tensor, yi: Tensor) -> Tensor:
        # A tied weight is one tensor in several places.
        everywhere = {name: tensors[first] for first, (_, names) in held.items() for name in names}
        return likelihood.nll(call_with(net, {**everywhere, **buffers}, xi[None]), yi[None])

    gradients = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
    total = torch.zeros((), device=x.device, dtype=next(iter(parameters.values())).dtype)
    shares = likelihood.counts(y).to(total)
    shares = shares / shares.sum().clamp_min(torch.finfo(shares.dtype).tiny)
    sums = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in parameters.items()}
    with _batch_norm_in_eval(net):
        for xs, ys, share in zip(x.split(chunk), y.split(chunk), shares.split(chunk), strict=True):
            grads, losses = gradients(parameters, xs, ys)
            total += losses @ share
            for name, g in grads.items():
                first, second = sums[name]
                own = torch.einsum("i,i...->i...", share, g)
                first += own.sum(0)
                second += (len(x) * own).square().sum(0)
    return total, {held[name][0]: (first, second / len(x)) for name, (first, second) in sums.items()}


def _batch_statistics(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What BatchNorm normalises this batch by, as its buffers; the net's own running averages follow as in training.

    Read from one pass, because a running variance is not what a batch is divided by: it has n - 1 in place of n.
    """
    statistics: dict[str, Tensor] = {}

    def reader(prefix: str) -> Callable[..., None]:
        def read(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if f"{prefix}running_mean" in statistics:
                raise ArgumentError(
                    f"{prefix or 'net.'}forward runs twice in a pass, with other statistics each time, and VOGN holds "
                    "one of each BatchNorm: give each call a layer of its own, or take vadam."
                )
            axes = [axis for axis in range(inputs[0].dim()) if axis != 1]
            variance, mean = torch.var_mean(inputs[0], axes, correction=0)
            statistics.update({f"{prefix}running_mean": mean, f"{prefix}running_var": variance})

        return read

    # A layer in eval mode is frozen, and keeps the statistics that it has.
    layers = {name: layer for name, layer in batch_norms(net).items() if layer.training}
    hooks = [layer.register_forward_hook(reader(f"{name}." if name else "")) for name, layer in layers.items()]
    try:
        if layers:
            with torch.no_grad():
                net(x)
    finally:
        for hook in hooks:
            hook.remove()
    return statistics


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

"""Likelihoods: what a network's outputs say about the data, in training and in prediction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed.core.distributions import at_least_float32, softplus
from kernelseed.core.predictive import Classification, Regression, require_alike
from kernelseed.errors import ArgumentError, ArgumentTypeError, NonFiniteOutputError
from kernelseed.fast import LOG_SQRT_2PI, is_traced

P = TypeVar("P", Classification, Regression, covariant=True)


class Likelihood(nn.Module, ABC, Generic[P]):
    """A module, because its noise may be learned. Its type parameter is what it predicts.

    read   takes the tensor out of what the network returns, for networks that return more:
           `Categorical(read=lambda output: output.logits)`
    """

    takes_minus_infinity: ClassVar[bool] = True
    """Whether an output may be -infinity, as the logit of a class that is ruled out is."""

    def __init__(self, read: Callable[[Any], Tensor] | None = None) -> None:
        super().__init__()
        self._read = read

    def read(self, output: Any) -> Tensor:
        """The network's output as a tensor of at least float32 without NaN."""
        return _sound(self._found(output), self.takes_minus_infinity)

    def read_draws(self, outputs: Sequence[Any]) -> Tensor:
        """The same for one output of each draw, stacked."""
        return _sound(_stacked([self._found(output) for output in outputs]), self.takes_minus_infinity)

    def _found(self, output: Any) -> Tensor:
        tensor = self._read(output) if self._read else output
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(
                f"the network returned {type(tensor).__name__}, not a tensor; say how to find the tensor in it: "
                f"likelihoods.{type(self).__name__}(read=lambda output: ...), for example output.logits."
            )
        return tensor

    @abstractmethod
    def nll(self, output: Any, target: Tensor) -> Tensor:
        """The negative log-likelihood, averaged over the batch; 0 for an empty one."""

    def counts(self, target: Tensor) -> Tensor:
        """How much each example counts in the average that `nll` is."""
        return torch.ones(len(target), device=target.device)

    @abstractmethod
    def predictive(self, outputs: list[Any]) -> P:
        """The predictive distribution from one output for each draw."""

    def forward(self, output: Any, target: Tensor) -> Tensor:
        """The same as `nll`."""
        return self.nll(output, target)


class Categorical(Likelihood[Classification]):
    """Classes by logits, class axis 1.

    weight        one number a class, as in `F.cross_entropy`: examples count by the weight of their class
    ignore_index  a label that does not count, as in `F.cross_entropy`

    >>> Categorical().nll(torch.zeros(4, 10), torch.tensor([0, 1, 2, 3])).exp().round().item()
    10.0
    """

    weight: Tensor | None

    def __init__(
        self,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        read: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__(read)
        self.register_buffer("weight", weight, persistent=False)
        self.ignore_index = ignore_index

    def _found(self, output: Any) -> Tensor:
        logits = super()._found(output)
        if logits.dim() < 2:
            raise ArgumentError(
                f"the network's output has shape {tuple(logits.shape)}; axis 1 must be the classes: (batch, classes)."
            )
        return logits

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """Cross entropy of integer labels, averaged over those that count."""
        logits = self.read(output)
        check_labels(target, logits, self.ignore_index)
        weight = None if self.weight is None else self.weight.to(logits)
        total = F.cross_entropy(logits, target.long(), weight, ignore_index=self.ignore_index, reduction="sum")
        counts = self.counts(target).sum().to(logits)
        return total / counts.clamp_min(1 if weight is None else torch.finfo(logits.dtype).tiny)

    def counts(self, target: Tensor) -> Tensor:
        """Its labels that are not ignored, or the weights of their classes."""
        target = target.long()  # in eight bits, 156 would equal an ignore_index of -100
        counted = target != self.ignore_index
        if self.weight is None:
            return counted.flatten(1).sum(1).float() if target.dim() > 1 else counted.float()
        each = self.weight.to(target.device)[target.where(counted, torch.zeros_like(target))] * counted
        return each.flatten(1).sum(1) if target.dim() > 1 else each

    def predictive(self, outputs: list[Any]) -> Classification:
        """Softmax once, then the average."""
        return Classification.from_logits(self.read_draws(outputs))


class Gaussian(Likelihood[Regression]):
    """Real targets with normal noise, whose standard deviation is

    a number      `Gaussian(noise=0.1)`: known
    "learned"     one learned number; give `loss.parameters()` to the optimizer too
    "output"      predicted: the network's last axis is twice as long, means first, then softplus^-1 of the deviations

    mean, std     of the targets, if the network speaks of standardised ones: targets, densities and predictions are in
                  the targets' own units

    >>> Gaussian(2.0, mean=10.0, std=3.0).predictive([torch.ones(1, 1)])
    Regression(mean=tensor([[13.]]), epistemic=tensor([[0.]]), aleatoric=tensor([[36.]]))
    """

    takes_minus_infinity: ClassVar[bool] = False

    def __init__(
        self,
        noise: float | str = "learned",
        *,
        mean: float = 0.0,
        std: float = 1.0,
        read: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__(read)
        if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
            raise ArgumentError(
                f"mean is {mean} and std {std}; both must be finite, and std above 0: 0 and 1 scale nothing."
            )
        self.mean, self.std = float(mean), float(std)
        if isinstance(noise, str):
            if noise not in ("learned", "output"):
                raise ArgumentError(f'noise is {noise!r}; allowed are a positive number, "learned" and "output".')
        elif not (noise > 0 and math.isfinite(noise)):
            raise ArgumentError(f"noise is {noise}; a standard deviation must be positive and finite.")
        self.noise = noise
        # softplus^-1(1): the deviation of standardised targets, before anything is learned.
        self.rho = nn.Parameter(torch.tensor([math.log(math.expm1(1.0))])) if noise == "learned" else None

    def split(self, output: Any) -> tuple[Tensor, Tensor]:
        """Mean and noise deviation from a network's output, as standardised as the network has them."""
        tensor = self.read(output)
        if self.noise == "output":
            if tensor.shape[-1] % 2:
                raise ArgumentError(
                    f'the network\'s last axis has length {tensor.shape[-1]}; noise="output" needs an even one: '
                    "the means, then as many deviations."
                )
            mean, rho = tensor.chunk(2, -1)
            return mean, softplus(rho)
        std = tensor.new_full((1,), float(self.noise)) if self.rho is None else softplus(self.rho).to(tensor)
        return tensor, std.expand_as(tensor)

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """Summed over an example's targets, averaged over the batch."""
        mean, std = self.split(output)
        if target.shape != mean.shape:
            raise ArgumentError(
                f"target has shape {tuple(target.shape)} and the network's mean {tuple(mean.shape)}; they must be "
                "equal: reshape the target, for example y[:, None]."
            )
        standardised = (target - self.mean) / self.std
        density = 0.5 * ((standardised - mean) / std).square() + std.log() + (LOG_SQRT_2PI + math.log(self.std))
        return density.sum() / max(len(target), 1)

    def predictive(self, outputs: list[Any]) -> Regression:
        """The draws' average, their spread and their noise."""
        means, stds = zip(*map(self.split, outputs), strict=True)
        mean, scale = _stacked(means).mean(0), self.std**2
        epistemic, aleatoric = (_stacked(means) - mean).square().mean(0), _stacked(stds).square().mean(0)
        return Regression(self.mean + self.std * mean, scale * epistemic, scale * aleatoric)


def _stacked(outputs: Sequence[Tensor]) -> Tensor:
    for output in outputs[1:]:
        require_alike(outputs[0], output)
    return torch.stack(tuple(outputs))


def _sound(tensor: Tensor, takes_minus_infinity: bool) -> Tensor:
    """At least float32; an error for NaN and infinity."""
    if can_look_at(tensor) and tensor.numel():
        least, largest = tensor.aminmax()  # NaN if there is one: a single pass
        if not (largest.item() < math.inf and (takes_minus_infinity or least.item() > -math.inf)):
            wrong = tensor.isnan() | (tensor.isposinf() if takes_minus_infinity else tensor.isinf())
            raise NonFiniteOutputError(
                f"the network's output has NaN or infinity in {int(wrong.sum())} of {tensor.numel()} places; look for "
                "them in the input, or lower the learning rate."
            )
    return at_least_float32(tensor)


def can_look_at(tensor: Tensor) -> bool:
    """Whether values can be checked at no cost: elsewhere it would stop the device, or a compiler, or vmap."""
    return tensor.is_cpu and not is_traced()


def check_labels(labels: Tensor, logits: Tensor, ignore_index: int) -> None:
    """Labels are whole numbers from 0 to the number of classes - 1, or the one that is ignored; one an example."""
    wanted = (len(logits), *logits.shape[2:])
    if labels.shape != wanted:
        raise ArgumentError(
            f"labels has shape {tuple(labels.shape)}, and the network's output {tuple(logits.shape)}; labels must have "
            f"shape {wanted}, one class each: use labels.argmax(1) for one-hot labels, labels.flatten() for a column."
        )
    if labels.is_floating_point():
        raise ArgumentTypeError(f"labels has dtype {labels.dtype}; class labels are whole numbers: use labels.long().")
    if not can_look_at(labels):
        return
    num_classes, labels = logits.shape[1], labels.long()  # 256 is 0 in eight bits
    wrong = ((labels < 0) | (labels >= num_classes)) & (labels != ignore_index)
    if wrong.any():
        raise ArgumentError(
            f"labels has {labels[wrong][0].item()}, but the network has {num_classes} outputs; allowed are 0 to "
            f"{num_classes - 1}: renumber the labels, or build the network with more classes."
        )

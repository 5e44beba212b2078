"""Metrics of predicted numbers: the Gaussian of a predictive `mean` and `std` against `targets`, all of one shape."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError
from kernelseed.metrics.checks import check_floating

LEVELS = tuple(i / 20 for i in range(1, 20))
"""Of central intervals, 5 % to 95 %."""


def rmse(mean: Tensor, targets: Tensor) -> float:
    """The root of the mean squared error.

    >>> rmse(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0]))
    3.5355339059327378
    """
    return _errors(mean, targets).square().mean().sqrt().item()


def gaussian_nll(mean: Tensor, std: Tensor, targets: Tensor) -> float:
    """The mean of -log N(target; mean, std^2): in nats, and it depends on the unit of the targets.

    >>> round(gaussian_nll(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([0.0])), 4)
    0.9189
    """
    return nll_of_each(_errors(mean, targets), _deviations(std, mean)).mean().item()


def nll_of_each(errors: Tensor, std: Tensor) -> Tensor:
    """-log N(error; 0, std^2)."""
    return 0.5 * (errors / std).square() + std.log() + 0.5 * math.log(2 * math.pi)


def crps(mean: Tensor, std: Tensor, targets: Tensor) -> float:
    """The continuous ranked probability score of the Gaussian, in the unit of the targets (Gneiting et al., 2005).

    It is the integral of (F(t) - [t >= target])^2, which for std 0 is the absolute error.

    >>> round(crps(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([0.0])), 4)
    0.2337
    """
    errors, s = _errors(mean, targets), _deviations(std, mean)
    z = errors / s
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return (s * (z * torch.special.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))).mean().item()


def interval_coverage(mean: Tensor, std: Tensor, targets: Tensor, level: float) -> float:
    """The share of targets inside the central interval that should hold `level` of them.

    >>> interval_coverage(torch.zeros(4), torch.ones(4), torch.tensor([0.1, -0.5, 0.7, 2.0]), 0.5)
    0.5
    """
    if not 0 < level < 1:
        raise ArgumentError(f"level is {level}; it is the probability of an interval: 0 < level < 1.")
    z = (_errors(mean, targets) / _deviations(std, mean)).abs()
    return (z <= math.sqrt(2) * torch.special.erfinv(torch.tensor(level, dtype=z.dtype))).double().mean().item()


def regression_summary(mean: Tensor, std: Tensor, targets: Tensor) -> dict[str, float]:
    """All metrics of predicted numbers, by name; `interval_error` is the mean of |coverage - level| over LEVELS.

    >>> list(regression_summary(torch.zeros(2), torch.ones(2), torch.ones(2)))
    ['rmse', 'mae', 'nll', 'crps', 'coverage_50', 'coverage_90', 'interval_error']
    """
    found = {level: interval_coverage(mean, std, targets, level) for level in LEVELS}
    return {
        "rmse": rmse(mean, targets),
        "mae": _errors(mean, targets).abs().mean().item(),
        "nll": gaussian_nll(mean, std, targets),
        "crps": crps(mean, std, targets),
        "coverage_50": found[0.5],
        "coverage_90": found[0.9],
        "interval_error": sum(abs(share - level) for level, share in found.items()) / len(found),
    }


def _errors(mean: Tensor, targets: Tensor) -> Tensor:
    """targets - mean in float64 on the CPU."""
    for name, tensor in (("mean", mean), ("targets", targets)):
        check_floating(tensor, name)
        if not tensor.isfinite().all():
            raise ArgumentError(f"{name} has NaN or infinity; numbers must be finite: look for their cause.")
    if mean.shape != targets.shape or mean.numel() == 0:
        raise ArgumentError(
            f"mean has shape {tuple(mean.shape)} and targets {tuple(targets.shape)}; they must be equal, and not "
            "empty: reshape one of them, for example y[:, None]."
        )
    return targets.detach().cpu().double() - mean.detach().cpu().double()


def _deviations(std: Tensor, mean: Tensor) -> Tensor:
    """std in float64 on the CPU."""
    check_floating(std, "std")
    if std.shape != mean.shape:
        raise ArgumentError(f"std has shape {tuple(std.shape)}; it must be that of mean, {tuple(mean.shape)}.")
    if not (std.isfinite() & (std > 0)).all():
        raise ArgumentError("std has numbers that are not positive and finite; standard deviations are: look for them.")
    return std.detach().cpu().double()

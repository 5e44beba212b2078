"""Goodness-of-fit tests with a stated false-alarm probability."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BUDGET = 1e-6
"""The probability that one statistic of a correct sampler is rejected."""
BOUND = 4.9
"""The two-sided bound that a standard normal exceeds with that probability."""


def check_standard_normal(noise: Tensor) -> None:
    """Raise unless noise of shape (draws, weights) looks like independent standard normals.

    >>> check_standard_normal(torch.randn(300, 20, dtype=torch.float64))
    """
    draws, weights = noise.shape
    within(noise.mean(0).abs().max().item() * math.sqrt(draws), BOUND + math.sqrt(2 * math.log(weights)), "a mean")
    # A sum of squares is chi-square distributed; its cube root is close to normal (Wilson and Hilferty).
    cubed = (noise.square().mean(0)) ** (1 / 3)
    scores = (cubed - (1 - 2 / (9 * draws))) / math.sqrt(2 / (9 * draws))
    within(scores.abs().max().item(), BOUND + math.sqrt(2 * math.log(weights)), "a standard deviation")
    for name, product in (("weights", noise[:, 1:] * noise[:, :-1]), ("draws", noise[1:] * noise[:-1])):
        if product.numel():
            within(abs(product.mean().item()) * math.sqrt(product.numel()), BOUND, f"the correlation of {name}")
    within(kolmogorov_smirnov(noise.flatten()), math.sqrt(-math.log(BUDGET / 2) / 2), "Kolmogorov-Smirnov statistic")


def kolmogorov_smirnov(sample: Tensor) -> float:
    """sqrt(n) times the largest distance between the empirical distribution function and the standard normal one."""
    n = len(sample)
    normal = torch.special.ndtr(sample.sort().values)
    steps = torch.arange(n + 1, dtype=sample.dtype) / n
    return math.sqrt(n) * max((steps[1:] - normal).max().item(), (normal - steps[:-1]).max().item())


def within(statistic: float, bound: float, name: str) -> None:
    """Raise if the statistic exceeds its bound."""
    assert statistic < bound, f"{name} is {statistic:.3g}, above its bound {bound:.3g}: not standard normal noise"

"""Temperature scaling: one number, fitted on validation data, that makes a predictor as sure as it is right.

It works on log-probabilities, p -> p^(1/T) / sum p^(1/T), and so applies to the averaged predictions of any
method; on the logits z of a single network that is softmax(z / T). T > 1 softens, T < 1 sharpens, and the
ranking of the classes stays.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.metrics.checks import check_floating, check_labels, check_probs, kind

__all__ = ["TemperatureScaling"]

LOWEST, HIGHEST = 0.01, 100.0  # the temperatures fit may return


@dataclass(frozen=True)
class TemperatureScaling:
    """A temperature, and what it does to probabilities.

    >>> overconfident = torch.tensor([[0.99, 0.01], [0.99, 0.01], [0.99, 0.01], [0.99, 0.01]])
    >>> scaling = TemperatureScaling.fit(overconfident, torch.tensor([0, 0, 0, 1]))
    >>> round(scaling.temperature, 2)
    4.18
    >>> scaling.apply(overconfident)[0]
    tensor([0.7500, 0.2500])
    """

    temperature: float

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, (int, float)) or isinstance(self.temperature, bool):
            raise ArgumentTypeError(
                f"temperature is a {kind(self.temperature)}; it must be a number: use float(temperature)."
            )
        if not 0 < self.temperature < math.inf:
            raise ArgumentError(
                f"temperature is {self.temperature}; it must be positive and finite: 1 changes nothing."
            )

    @classmethod
    def fit(cls, probs: Tensor, labels: Tensor, *, logits: bool = False) -> "TemperatureScaling":
        """The temperature in [0.01, 100] with the least NLL on (N, K) probs and their labels.

        With logits=True, probs are logits. A result on a bound says that the data do not determine one:
        perfectly separated examples want T -> 0, labels that contradict the ranking T -> infinity. Where
        every T is equally good, it is 1.
        """
        z = _log_probs(probs, logits)
        y = check_labels(labels, z)[:, None]
        z = z - z.amax(1, keepdim=True)  # uniform rows are exactly 0, and then so is their slope
        z_y = z.gather(1, y)

        def slope(log_t: float) -> tuple[float, float]:
            """d NLL / d(1/T), and its own derivative in log T."""
            p = (z * math.exp(-log_t)).softmax(1)
            mean = (p * z).sum(1, keepdim=True)
            variance = (p * (z - mean).square()).sum(1)
            return (mean - z_y).mean().item(), -math.exp(-log_t) * variance.mean().item()

        # The NLL is convex in 1/T, so its slope falls as log T grows: one root at most, to be bracketed.
        low, high, log_t = math.log(LOWEST), math.log(HIGHEST), 0.0
        if slope(log_t)[0] == 0:
            return cls(1.0)
        if slope(low)[0] <= 0:
            return cls(LOWEST)
        if slope(high)[0] >= 0:
            return cls(HIGHEST)
        step = high - low
        while abs(step) > 1e-10 and high - low > 1e-10:
            value, derivative = slope(log_t)
            low, high = (log_t, high) if value > 0 else (low, log_t)
            newton = log_t - value / derivative if derivative else math.inf
            # Bisect where Newton would leave the bracket or does not halve its step: so the search must end.
            good = low <= newton <= high and abs(newton - log_t) <= abs(step) / 2
            following = newton if good else (low + high) / 2
            step, log_t = following - log_t, following
        return cls(math.exp(log_t))

    def apply(self, probs: Tensor, *, logits: bool = False) -> Tensor:
        """The scaled probabilities of (N, K) probs (or logits, if True): same dtype and device, detached.

        The ranking of the classes stays, but probabilities that differ by a rounding may come out as a tie.
        """
        return (_log_probs(probs, logits) / self.temperature).softmax(1).to(probs)


def _log_probs(probs: Tensor, logits: bool) -> Tensor:
    """Log-probabilities, up to a constant per row, in float64 on the CPU; 0 is clamped as in nll."""
    if not logits:
        return check_probs(probs).clamp(min=torch.finfo(probs.dtype).tiny).log()
    check_floating(probs, "probs")
    if probs.ndim != 2 or probs.numel() == 0:
        raise ArgumentError(
            f"probs has shape {tuple(probs.shape)}; logits must be (examples, classes) and not empty: "
            "give one example as logits[None]."
        )
    if not probs.isfinite().all():
        raise ArgumentError("probs holds inf or nan; logits must be finite: mask a class with -1e4, not -inf.")
    return probs.detach().cpu().double()

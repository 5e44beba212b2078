"""Temperature scaling: one number, fitted on validation data, that calibrates a predictor.

It works on log-probabilities, p -> p^(1/T) / sum p^(1/T), so it applies to the averaged predictions of any method. On
the logits z of a single network it is softmax(z / T). T > 1 softens, T < 1 sharpens, and the ranking of the classes
does not change.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.metrics.checks import check_floating, check_labels, check_probs, kind

__all__ = ["TemperatureScaling"]

LOWEST, HIGHEST = 0.01, 100.0  # the temperatures that fit may return


@dataclass(frozen=True)
class TemperatureScaling:
    """A temperature that rescales probabilities.

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
        """The temperature in [0.01, 100] with the lowest NLL on (N, K) probs and their labels.

        With logits=True, probs are logits. A result on a bound means that the data do not determine T: perfectly
        separated examples lead to T -> 0, and labels that contradict the ranking to T -> infinity. If every T is
        equally good, the result is 1.
        """
        z = _log_probs(probs, logits)
        y = check_labels(labels, z)[:, None]
        z = z - z.amax(1, keepdim=True)  # uniform rows become exactly 0, and so does their slope
        z_y = z.gather(1, y)

        def slope(log_t: float) -> tuple[float, float]:
            """d NLL / d(1/T), and its derivative with respect to log T."""
            p = (z * math.exp(-log_t)).softmax(1)
            mean = (p * z).sum(1, keepdim=True)
            variance = (p * (z - mean).square()).sum(1)
            return (mean - z_y).mean().item(), -math.exp(-log_t) * variance.mean().item()

        # The NLL is convex in 1/T, so its slope falls as log T grows and has at most one root, which can be bracketed.
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
            # Bisect if a Newton step would leave the bracket or does not halve the last step, so that the search ends.
            good = low <= newton <= high and abs(newton - log_t) <= abs(step) / 2
            following = newton if good else (low + high) / 2
            step, log_t = following - log_t, following
        return cls(math.exp(log_t))

    def apply(self, probs: Tensor, *, logits: bool = False) -> Tensor:
        """The scaled probabilities of (N, K) probs (logits if logits=True): same dtype and device, detached.

        The ranking of the classes does not change, but probabilities that differ only by rounding may become ties.
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

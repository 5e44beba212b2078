"""KL schedules: the weight of KL / N in the loss of each step. 1 is the exact evidence lower bound.

A schedule is a function of a `Moment`. It has no state, so a resumed or repeated step gets the same weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kernelseed.errors import ArgumentError, ArgumentTypeError


@dataclass(frozen=True)
class Moment:
    """The state of training: the step, from 0, and the numbers of examples, Bayesian weights and batches per epoch."""

    step: int | None
    num_data: int
    num_weights: int = 0
    num_batches: int | None = None

    def require_step(self, who: str, how: str = "loss(draw, x, y, step=step)") -> int:
        """The step, or an error that says how to give it."""
        if self.step is None or self.step < 0:
            raise ArgumentError(f"step is {self.step}; {who} needs the training step, counted from 0: {how}.")
        return self.step


Schedule = Callable[[Moment], float]


def uniform() -> Schedule:
    """1/M of the KL for each of the M batches of an epoch: the evidence lower bound.

    >>> uniform()(Moment(step=3, num_data=100, num_weights=10))
    1.0
    """
    return constant(1.0)


def constant(temperature: float) -> Schedule:
    """A fixed temperature; below 1 the posterior is colder than the Bayes posterior."""
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ArgumentError(f"temperature is {temperature}; a weight of the KL must be finite, and 0 (none) or more.")
    return partial(_constant, temperature)


def settled(noise: float = 0.025) -> Schedule:
    """The default: min(1, 2 x noise x N / number of weights), the exact bound for networks that are small enough.

    Where the sigmas of n Gaussians have settled, the cost of the noise (for a curvature h, h sigma^2 / 2 an example)
    grows as fast as the KL (weight / N log sigma) falls. All noise together then costs weight x n / (2 N) nats an
    example: `noise`, or less. A network that is to predict well can't afford more than a small part of its NLL.

    >>> settled()(Moment(step=None, num_data=60_000, num_weights=6_000_000))
    0.0005
    """
    if not (noise > 0 and math.isfinite(noise)):
        raise ArgumentError(f"noise is {noise}; what all noise may cost, in nats an example, must be finite, above 0.")
    return partial(_settled, noise)


def automatic() -> Schedule:
    """min(1, N / number of weights): otherwise the KL of a large network outweighs its data.

    Noise that has settled costs half a nat an example then, which is much: see `settled`.

    >>> automatic()(Moment(step=None, num_data=60_000, num_weights=11_000_000))
    0.005454545454545455
    """
    return settled(0.5)


def blundell(num_batches: int | None = None) -> Schedule:
    """2^(M-i) / (2^M - 1) of the KL for batch i = 1..M of an epoch: first the prior, then the data.

    >>> first = blundell(3)(Moment(step=0, num_data=1)) / 3
    >>> round(first, 4)  # 4/7
    0.5714
    """
    if num_batches is not None and num_batches < 1:
        raise ArgumentError(f"num_batches is {num_batches}; an epoch has at least one batch: pass len(loader).")
    return partial(_blundell, num_batches)


def warmup(steps: int, then: Schedule | float | None = None) -> Schedule:
    """A factor that rises linearly from 0 to 1 over this many steps, times the schedule `then` (default: settled)."""
    if steps < 1:
        raise ArgumentError(f"steps is {steps}; a warm-up takes at least one step.")
    return partial(_warmup, steps, as_schedule(then))


def scaled(factor: float, then: Schedule | float | None = None) -> Schedule:
    """A factor times the schedule `then` (default: settled); below 1 the posterior is colder.

    >>> scaled(0.1, uniform())(Moment(step=None, num_data=100))
    0.1
    """
    if not (factor >= 0 and math.isfinite(factor)):
        raise ArgumentError(f"factor is {factor}; a factor of the KL's weight must be finite, and 0 (none) or more.")
    return partial(_scaled, factor, as_schedule(then))


def as_schedule(given: Schedule | float | None) -> Schedule:
    """The schedule for an argument: a schedule as it is, a number as a constant, None as `settled()`.

    >>> as_schedule(0.1)(Moment(step=None, num_data=100))
    0.1
    """
    if given is None:
        return settled()
    if callable(given):
        if given in (uniform, constant, settled, automatic, blundell, warmup, scaled):
            name = f"schedules.{given.__name__}"
            raise ArgumentTypeError(f"kl_weight is the function {name}; call it to make a schedule: {name}(...).")
        return given
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise ArgumentTypeError(
            f"kl_weight is {given!r}; it must be a number or a schedule, such as schedules.settled()."
        )
    return constant(given)


# Module-level functions, so that an objective can be pickled.


def _constant(temperature: float, moment: Moment) -> float:
    return float(temperature)


def _settled(noise: float, moment: Moment) -> float:
    return min(1.0, 2 * noise * moment.num_data / max(moment.num_weights, 1))


def _blundell(num_batches: int | None, moment: Moment) -> float:
    num_batches = num_batches or moment.num_batches
    if not num_batches:
        raise ArgumentError("num_batches is missing; say how many batches an epoch has: blundell(len(loader)).")
    i = moment.require_step("schedules.blundell") % num_batches + 1
    # Numerator and denominator are divided by 2^M, which would overflow at about a thousand batches. The factor M is
    # there because a weight of 1 means 1/M of the KL.
    return num_batches * 2.0**-i / (1 - 2.0**-num_batches)


def _scaled(factor: float, then: Schedule, moment: Moment) -> float:
    return factor * then(moment)


def _warmup(steps: int, then: Schedule, moment: Moment) -> float:
    return min(1.0, moment.require_step("schedules.warmup") / steps) * then(moment)

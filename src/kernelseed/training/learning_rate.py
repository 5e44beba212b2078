"""The learning rate over a run: a factor that is a function of the step alone, so that a resumed run needs no state."""

from __future__ import annotations

import math

SCHEDULES = ("constant", "cosine", "onecycle")
START, END = 1 / 25, 1 / 25 / 1e4  # of the one cycle: torch's


def lr_factor(schedule: str, step: int, total: int, warmup: int = 0) -> float:
    """What the learning rate is multiplied by at a step, counted from 0, of so many in all.

    constant  1
    cosine    half a cosine from 1 down to 0
    onecycle  torch's OneCycleLR: half a cosine up from 1/25 over `warmup` steps, or over .3 of all if that is 0, and
              another down to 1/250000

    Before the first two, `warmup` steps rise linearly to 1.

    >>> [round(lr_factor("cosine", step, 6, warmup=2), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if schedule == "onecycle":
        top = (warmup or max(1, round(0.3 * total))) - 1  # the step at which it is 1
        if step <= top:
            return _half_cosine(START, 1.0, step / top if top else 1.0)
        return _half_cosine(1.0, END, (step - top) / (total - 1 - top))
    if step < warmup:
        return (step + 1) / warmup
    return _half_cosine(1.0, 0.0, (step - warmup) / (total - warmup)) if schedule == "cosine" else 1.0


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))

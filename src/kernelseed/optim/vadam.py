"""Vadam: Adam whose second moment gives the precision of a posterior (Khan et al., 2018, arXiv:1806.04854)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError
from kernelseed.optim.posterior import Group, Pair, PosteriorOptimizer, State, call


def vadam_update(
    mu: Tensor,
    m: Tensor,
    v: Tensor,
    gbar: Tensor,
    qbar: Tensor,
    *,
    t: int,
    lr: float,
    betas: tuple[float, float],
    lam: float,
    N: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(mu, m, v) after step t = 1, 2, ...; gbar and qbar are the means over draws of g and of g^2."""
    b1, b2 = betas
    m = b1 * m + (1 - b1) * (gbar + lam * mu / N)
    v = b2 * v + (1 - b2) * qbar
    mhat, vhat = m / (1 - b1**t), v / (1 - b2**t)
    return mu - lr * mhat / (vhat.sqrt() + lam / N), m, v


class Vadam(PosteriorOptimizer):
    """Adam at draws from q(w) = N(mu, 1 / (N s + lam)), where s is the running mean of squared minibatch gradients.

    s starts at s0 = (P0 - lam) / N, which the authors' runs set to 0. Then the first draws have the prior's standard
    deviation, in which a deep network learns nothing. A larger s0 makes them less noisy. It must not make the steps
    shorter: Adam's bias correction is for an average that starts at 0 and would multiply s0 by 1 / (1 - betas[1]), a
    thousand. So the average of the gradients, v, is kept apart from the start: s = v + betas[1]^t s0, and only v, bias
    corrected, divides a step. With s0 = 0 this is the published Vadam.

    ```python
    opt = Vadam(model.parameters(), num_data=len(train))
    for x, y in loader:
        loss = opt.step(lambda: F.cross_entropy(model(x), y))
    with opt.sampled():  # one draw from the posterior; outside of the block the weights are its mean
        model(x_test)
    ```

    A step calls the closure at `train_samples` draws of the weights, averages the gradients and their squares, and
    updates the mean. The closure only returns the loss, a mean over the minibatch; it must not call backward. `.grad`
    is neither read nor written, so the hooks of DistributedDataParallel do not run. A loss or a gradient that is not
    finite raises FloatingPointError and leaves mean and state unchanged.

    Vadam squares the mean gradient of a minibatch, so N s is about 1 / (batch size) of the Fisher information, and the
    variances are that much too large where the data, not the prior, determine them. VOGN squares per-example gradients.

    BatchNorm's running statistics are averages over draws; re-estimate them before you predict.

    Arguments:
        params: parameters or parameter groups, as for any torch optimizer. Groups can have their own lr, betas,
            prior_precision and init_precision.
        num_data: N, the size of the training set.
        lr: learning rate.
        betas: decay of the mean gradient and of the mean squared gradient.
        prior_precision: lam of the prior N(0, 1 / lam).
        init_precision: the initial precision P0 = N s + lam, at least lam; by default lam + num_data / 10. It decides
            how noisy the first draws are, and is forgotten at the rate of betas[1].
        train_samples: the number of posterior draws averaged in a step.
        generator: the generator of the noise; see `PosteriorOptimizer`.
    """

    def __init__(
        self,
        params: Any,
        num_data: float,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        prior_precision: float = 1.0,
        init_precision: float | None = None,
        train_samples: int = 10,
        generator: torch.Generator | None = None,
    ) -> None:
        defaults = {
            "num_data": num_data,
            "lr": lr,
            "betas": betas,
            "prior_precision": prior_precision,
            "init_precision": init_precision,
        }
        super().__init__(params, defaults, train_samples, generator)

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor:  # type: ignore[override]
        """One update from `train_samples` draws; returns the mean of their losses, detached."""
        return self._step(lambda: self._differentiate([scalar(call(closure))]))

    def _initial_state(self, p: Tensor, group: Group) -> State:
        return {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}

    def _precision(self, state: State, group: Group) -> Tensor:
        start = group["betas"][1] ** state["t"] * (group["init_precision"] - group["prior_precision"])
        return group["num_data"] * state["v"] + start + group["prior_precision"]

    def _update(self, mu: Tensor, means: Pair, state: State, group: Group) -> tuple[Tensor, State]:
        t = state["t"] + 1
        mu, m, v = vadam_update(
            mu,
            state["m"],
            state["v"],
            *means,
            t=t,
            lr=group["lr"],
            betas=group["betas"],
            lam=group["prior_precision"],
            N=group["num_data"],
        )
        return mu, {"t": t, "m": m, "v": v}


def scalar(loss: Tensor) -> Tensor:
    """Check that the loss is a scalar, and return it."""
    if loss.dim():
        raise ArgumentError(
            f"closure returned a tensor of shape {tuple(loss.shape)}; Vadam needs the mean loss of the minibatch, a "
            "scalar: append .mean() or use reduction='mean'."
        )
    return loss

"""VOGN: variational inference with squared per-example gradients (Khan et al., 2018, arXiv:1806.04854).

Momentum and damping are those of the large-scale version (Osawa et al., 2019, arXiv:1906.02506), and off by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError
from kernelseed.optim.posterior import Group, Moments, Pair, PosteriorOptimizer, State, call, check


def vogn_update(
    mu: Tensor,
    m: Tensor,
    P: Tensor,
    gbar: Tensor,
    hbar: Tensor,
    *,
    t: int,
    lr: float,
    betas: tuple[float, float],
    lam: float,
    N: float,
    damping: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(mu, m, P) after step t = 1, 2, ...; gbar, hbar are means over draws and examples of g, g^2."""
    b1, b2 = betas
    m = b1 * m + (1 - b1) * (N * gbar + lam * mu)
    P = b2 * P + (1 - b2) * (N * hbar + lam)
    return mu - lr * m / (1 - b1**t) / (P + N * damping), m, P


class VOGN(PosteriorOptimizer):
    """Variational online Gauss-Newton: q(w) = N(mu, 1 / P), where P is estimated from squared per-example gradients.

    ```python
    opt = VOGN(model.parameters(), num_data=len(train))
    for x, y in loader:
        loss = opt.step(lambda x, y: F.cross_entropy(model(x), y), x, y)
    with opt.sampled():  # one draw from the posterior; outside of the block the weights are its mean
        model(x_test)
    ```

    `step` needs the gradient of every example. It computes them with plain autograd, one after another, in the memory
    of one gradient. That is exact for everything that autograd can differentiate, including tied weights and
    recurrence. There are three forms:

    - `step(closure, *batch)` calls the closure on one example at a time: each tensor of the batch has length 1.
      Examples must not interact. BatchNorm in training mode would normalise each example by itself, so put it in
      evaluation mode, or use the second form.
    - `step(closure)` calls a closure that returns the vector of the losses of the batch, as with `reduction="none"`,
      and differentiates its elements one by one, each with a backward pass through the batch. If examples interact, as
      with BatchNorm in training mode, these gradients include the effect of the batch statistics.
    - `step(moments=f)` leaves the differentiation to you: f() returns the mean loss and, for each parameter, the means
      of the per-example gradients and of their squares, at the current weights.

    The first form is faster than the second. `torch.func.vmap(grad)` is faster than both, but needs the module itself,
    a batch of gradients in memory and a batching rule for every operation; use it through `moments`.

    Arguments:
        params: parameters or parameter groups, as for any torch optimizer. Groups can have their own lr, betas,
            prior_precision, init_precision and damping.
        num_data: N, the size of the training set.
        lr: learning rate, as a fraction of a diagonal Newton step.
        betas: decay of the momentum (0, as in the original VOGN, is none) and of the precision.
        prior_precision: lam of the prior N(0, 1 / lam).
        init_precision: the initial P, at least lam; by default lam + num_data / 10, see Vadam.
        damping: gamma >= 0 adds N gamma to the precision, also for draws; a larger gamma gives smaller steps.
        train_samples: the number of posterior draws averaged in a step.
        generator: the generator of the noise; see `PosteriorOptimizer`.

    A loss or a gradient that is not finite raises FloatingPointError and leaves mean and state unchanged. The closure
    only returns losses; it must not call backward. `.grad` is neither read nor written.
    """

    def __init__(
        self,
        params: Any,
        num_data: float,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.0, 0.999),
        prior_precision: float = 1.0,
        init_precision: float | None = None,
        damping: float = 0.0,
        train_samples: int = 10,
        generator: torch.Generator | None = None,
    ) -> None:
        defaults = {
            "num_data": num_data,
            "lr": lr,
            "betas": betas,
            "prior_precision": prior_precision,
            "init_precision": init_precision,
            "damping": damping,
        }
        super().__init__(params, defaults, train_samples, generator)

    def step(  # type: ignore[override]
        self,
        closure: Callable[..., Tensor] | None = None,
        *batch: Tensor,
        moments: Callable[[], tuple[Tensor, Moments]] | None = None,
    ) -> Tensor:
        """One update from `train_samples` draws; returns the mean loss over draws and examples, detached."""
        if moments is not None:
            return self._step(lambda: [moments()])
        return self._step(lambda: self._differentiate(example_losses(closure, batch), shared_graph=not batch))

    def _initial_state(self, p: Tensor, group: Group) -> State:
        return {"t": 0, "m": torch.zeros_like(p), "P": torch.full_like(p, group["init_precision"])}

    def _precision(self, state: State, group: Group) -> Tensor:
        return state["P"] + group["num_data"] * group["damping"]

    def _update(self, mu: Tensor, means: Pair, state: State, group: Group) -> tuple[Tensor, State]:
        t = state["t"] + 1
        mu, m, P = vogn_update(
            mu,
            state["m"],
            state["P"],
            *means,
            t=t,
            lr=group["lr"],
            betas=group["betas"],
            lam=group["prior_precision"],
            N=group["num_data"],
            damping=group["damping"],
        )
        return mu, {"t": t, "m": m, "P": P}

    def add_param_group(self, param_group: Group) -> None:
        """Check the damping, and add the group as in every PosteriorOptimizer."""
        damping = param_group.get("damping", self.defaults["damping"])
        check(0 <= damping < float("inf"), "damping", damping, "finite and not negative", "0 turns it off")
        super().add_param_group(param_group)


def example_losses(closure: Callable[..., Tensor] | None, batch: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """The loss of each example: from one call of the closure per example, or the elements of its vector."""
    if not batch:
        losses = call(closure)
        if losses.dim() != 1 or not len(losses):
            raise ArgumentError(
                f"closure returned a tensor of shape {tuple(losses.shape)}; VOGN needs the vector of the losses: use "
                "reduction='none', or give step the batch, step(closure, x, y)."
            )
        yield from losses.unbind()
        return
    lengths = [len(tensor) for tensor in batch]
    if len(set(lengths)) > 1 or not lengths[0]:
        raise ArgumentError(
            f"batch has tensors of lengths {lengths}; all must have the same number of examples, at least 1: the first "
            "dimension counts examples."
        )
    for example in zip(*(tensor.split(1) for tensor in batch), strict=True):
        loss = call(closure, *example)
        if loss.numel() != 1:
            raise ArgumentError(
                f"closure returned a tensor of shape {tuple(loss.shape)} for one example; it must return one loss: sum "
                "over all but the example dimension."
            )
        yield loss.reshape(())

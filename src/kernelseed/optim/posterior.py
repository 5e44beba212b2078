"""The common part of Vadam and VOGN: a Gaussian with diagonal precision around the parameters, and its samples.

The parameters hold the mean of the posterior; the state of the optimizer determines its precision. Inside a `with`
block the parameters hold a draw; the mean is always restored, bit for bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError, ArgumentTypeError, NonFiniteError

Group = dict[str, Any]
State = dict[str, Any]
Pair = tuple[Tensor, Tensor]
Moments = dict[Tensor, Pair]
# A loss, and for each parameter that it depends on: its gradient g, and the mean of g^2 (None: g * g).
Term = tuple[Tensor, Mapping[Tensor, tuple[Tensor, Tensor | None]]]

# The default init_precision is prior_precision + INIT_SHARE num_data. If it is much smaller, draws of a deep network
# are mostly noise; if it is much larger, the first steps, which divide by it, are too short. See Vadam for
# measurements.
INIT_SHARE = 0.1


def check(holds: bool, argument: str, value: object, rule: str, remedy: str) -> None:
    """Raise an ArgumentError with the argument, its value, the rule and what to do, unless the rule holds."""
    if not holds:
        raise ArgumentError(f"{argument} is {value!r}; it must be {rule}: {remedy}.")


def check_group(group: Group) -> None:
    """Check the hyperparameters of one parameter group. The comparisons are false for NaN."""
    N, lr, betas, lam, P0 = (group[key] for key in ("num_data", "lr", "betas", "prior_precision", "init_precision"))
    check(0 < N < math.inf, "num_data", N, "positive and finite", "give the size of the training set, len(dataset)")
    check(0 <= lr < math.inf, "lr", lr, "finite and not negative", "try 1e-3 for Vadam, 1e-2 for VOGN")
    are_rates = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
    check(are_rates, "betas", betas, "a pair of numbers in [0, 1)", "try (0.9, 0.999); 0 turns an average off")
    remedy = "it is 1 / variance of a weight's prior, and 1.0 is a standard normal"
    check(0 < lam < math.inf, "prior_precision", lam, "positive and finite", remedy)
    rule = f"finite and at least the prior_precision {lam!r}"
    check(lam <= P0 < math.inf, "init_precision", P0, rule, "raise it, or leave it None for the default")
    for p in group["params"]:
        if p.requires_grad and p.dtype not in (torch.float32, torch.float64):
            raise ArgumentTypeError(
                f"params has a trainable parameter of {p.dtype}; it must be float32 or float64, because smaller types "
                "lose a precision's small increments: keep float32, and run the closure under autocast."
            )


class PosteriorOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer whose parameters are the mean of q(w) = N(mu, 1 / precision).

    A parameter is random if it requires a gradient or has ever been trained; any other parameter is a constant with
    standard deviation 0. So freezing a trained parameter stops its training but keeps its posterior.

    Noise is one `torch.randn` for each random parameter, in the order of the groups. It uses the generator of the call,
    else that of the constructor, else torch's global one. The constructor's generator is part of `state_dict`; with the
    global one, save `torch.get_rng_state()` if a run must continue bit for bit.
    """

    def __init__(self, params: Any, defaults: Group, train_samples: int, generator: torch.Generator | None) -> None:
        is_count = isinstance(train_samples, int) and train_samples >= 1
        remedy = "a step averages so many draws, 1 is the cheapest and 10 is common"
        check(is_count, "train_samples", train_samples, "an integer of at least 1", remedy)
        self.train_samples = train_samples
        self.generator = generator
        self._is_sampled = False
        super().__init__(params, defaults)

    # What a subclass defines: its state, the precision for a state, and the update in one step

    @abstractmethod
    def _initial_state(self, p: Tensor, group: Group) -> State:
        """The state of a parameter before its first step."""

    @abstractmethod
    def _precision(self, state: State, group: Group) -> Tensor:
        """The posterior precision, elementwise."""

    @abstractmethod
    def _update(self, mu: Tensor, means: Pair, state: State, group: Group) -> tuple[Tensor, State]:
        """The next mean and state, as new tensors, from the means of g and of g^2."""

    # The posterior, for users

    @torch.no_grad()
    def precision(self, p: Tensor) -> Tensor:
        """The posterior precision of every element of the parameter p: infinite where p is a constant."""
        for group in self.param_groups:
            if any(p is q for q in group["params"]):
                if not self._is_random(p):
                    return torch.full_like(p, math.inf)
                return self._precision(self._state(p, group), group)
        raise ArgumentError(
            f"p is a tensor of shape {tuple(p.shape)}; it is none of this optimizer's parameters: pass the parameter "
            "itself, such as model.weight, not a copy."
        )

    def std(self, p: Tensor) -> Tensor:
        """The posterior standard deviation of every element of the parameter p: 0 where p is a constant."""
        return self.precision(p).rsqrt()

    @torch.no_grad()
    def draw(self, generator: torch.Generator | None = None) -> dict[Tensor, Tensor]:
        """One draw w = mu + eps / sqrt(precision) of every random parameter; the parameters are not changed."""
        self._refuse_if_sampled("draw()")
        posterior = self._posterior()
        drawn = {p: torch.empty_like(p) for p in posterior}
        draw_into(drawn, posterior, generator if generator is not None else self.generator)
        return drawn

    @contextmanager
    def sampled(self, generator: torch.Generator | None = None) -> Iterator[None]:
        """Hold one posterior draw in the parameters; the mean is restored at the end of the block, also after an error.

        Changes to the parameters inside the block are lost. Weights are written in place, so differentiating a graph
        outside of the block in which it was built is an autograd error, not a wrong gradient.
        """
        self._refuse_if_sampled("sampled()")
        posterior = self._posterior()
        with self._restoring(posterior):
            draw_into({p: p for p in posterior}, posterior, generator if generator is not None else self.generator)
            yield

    # The parts of a step

    @torch.no_grad()
    def _posterior(self) -> Moments:
        """A copy of the mean, and the standard deviation, of every random parameter."""
        return {
            p: (p.detach().clone(), self._precision(self._state(p, group), group).rsqrt())
            for group in self.param_groups
            for p in group["params"]
            if self._is_random(p)
        }

    @contextmanager
    def _restoring(self, posterior: Moments) -> Iterator[None]:
        """A block in which the parameters hold draws, and after which they hold the mean."""
        mean = {p: value for p, (value, _) in posterior.items()}
        try:
            self._is_sampled = True
            yield
        finally:
            try:
                write(mean)
            except BaseException:  # an interrupt while the mean is being restored
                write(mean)
                raise
            finally:
                self._is_sampled = False

    @torch.no_grad()
    def _step(self, terms: Callable[[], Iterable[Term]]) -> Tensor:
        """Update every parameter in `terms()`, all after the last draw; return the mean loss.

        A parameter in no term is not updated; a parameter in some of the terms has gradient 0 in the others.
        """
        self._refuse_if_sampled("step()")
        total, count = torch.zeros(()), 0
        sums: Moments = {}
        posterior = self._posterior()  # it stays the same until the update
        with self._restoring(posterior):
            for _ in range(self.train_samples):
                draw_into({p: p for p in posterior}, posterior, self.generator)
                with torch.enable_grad():
                    for loss, gradients in terms():
                        total, count = total.to(loss) + loss.detach(), count + 1
                        for p, (g, square) in gradients.items():
                            if p not in sums:
                                sums[p] = (torch.zeros_like(p), torch.zeros_like(p))
                            G, Q = sums[p]
                            G.add_(g)
                            Q.addcmul_(g, g) if square is None else Q.add_(square)
        if not sums:
            raise ArgumentError(
                "the loss depends on none of the parameters; it must run the model this optimizer was given, with "
                "parameters that require gradients: check the closure."
            )
        loss, means = total / count, {p: (G.div_(count), Q.div_(count)) for p, (G, Q) in sums.items()}
        check_finite(loss, means)
        for group in self.param_groups:
            for p in group["params"]:
                if p in means:
                    mu, self.state[p] = self._update(p, means[p], self._state(p, group), group)
                    p.copy_(mu)
        return loss

    def _differentiate(self, losses: Iterable[Tensor], shared_graph: bool = False) -> Iterator[Term]:
        """A term for each loss."""
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        for loss in losses:
            found = zip(params, gradients_of(loss, params, retain_graph=shared_graph), strict=True)
            yield loss, {p: (g, None) for p, g in found if g is not None}

    def _state(self, p: Tensor, group: Group) -> State:
        # not stored here, because a parameter in self.state counts as trained
        return self.state[p] if p in self.state else self._initial_state(p, group)

    def _is_random(self, p: Tensor) -> bool:
        return p.requires_grad or p in self.state

    def _refuse_if_sampled(self, what: str) -> None:
        if self._is_sampled:
            raise RuntimeError(
                f"{what} inside sampled(); it needs the mean, and the parameters hold a draw until the block ends: "
                f"call {what} after it."
            )

    # torch's protocol

    def add_param_group(self, param_group: Group) -> None:
        """Check and add a group of parameters; missing settings are those of the constructor."""
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        group = {**self.defaults, **param_group, "params": params}
        if group["init_precision"] is None:
            group["init_precision"] = group["prior_precision"] + INIT_SHARE * group["num_data"]
        # named parameters come as (name, parameter) pairs, which super() separates
        check_group({**group, "params": [p[1] if isinstance(p, tuple) else p for p in params]})
        super().add_param_group(group)

    def state_dict(self) -> dict[str, Any]:
        """torch's state_dict, and the state of the constructor's generator if there is one."""
        state = super().state_dict()
        return state if self.generator is None else {**state, "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` saved; the generator only if this optimizer has one."""
        super().load_state_dict(state_dict)
        if self.generator is not None and "generator" in state_dict:
            self.generator.set_state(state_dict["generator"].cpu())

    def __getstate__(self) -> dict[str, Any]:
        # torch pickles and copies only its own attributes; a copy is not inside a sampled() block
        ours = {"train_samples": self.train_samples, "generator": self.generator, "_is_sampled": False}
        return {**super().__getstate__(), **ours}


def standard_normal(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """Noise in the shape of p, drawn on the generator's device, so that a seed gives the same draw on every device."""
    device = p.device if generator is None else generator.device
    return torch.randn(p.shape, generator=generator, dtype=p.dtype, device=device).to(p.device)


@torch.no_grad()
def draw_into(places: dict[Tensor, Tensor], posterior: Moments, generator: torch.Generator | None) -> None:
    """Write mean + noise std of each parameter into its place."""
    for p, (mean, std) in posterior.items():
        torch.addcmul(mean, standard_normal(p, generator), std, out=places[p])


@torch.no_grad()
def write(values: dict[Tensor, Tensor]) -> None:
    """Write each value into its parameter."""
    for p, value in values.items():
        p.copy_(value)


def check_finite(loss: Tensor, moments: Moments) -> None:
    """Raise if a loss or a gradient is not finite, before anything is updated."""
    finite = {p: (G + Q).isfinite().all() for p, (G, Q) in moments.items()}
    if torch.stack([loss.isfinite(), *(flag.to(loss.device) for flag in finite.values())]).all():  # read once
        return
    if not loss.isfinite():
        raise NonFiniteError(
            f"the loss is {loss.item()}; it must be finite, and the mean weights are as before this step: lower lr, or "
            "raise init_precision so that draws stay closer to the mean."
        )
    shape = next(tuple(p.shape) for p, flag in finite.items() if not flag)
    raise NonFiniteError(
        f"a gradient of a parameter of shape {shape} is not finite, though the loss is; the mean weights are as before "
        "this step: look for sqrt or log at 0 in the model."
    )


def gradients_of(loss: Tensor, params: list[Tensor], retain_graph: bool) -> tuple[Tensor | None, ...]:
    """The gradient of one scalar loss for every parameter; None if the loss does not depend on it."""
    if not loss.requires_grad:
        return (None,) * len(params)
    try:
        found = torch.autograd.grad(loss, params, retain_graph=retain_graph, allow_unused=True)
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            raise RuntimeError("closure called backward(); it only returns the loss: drop the call.") from error
        raise
    return tuple(g if g is None else g.to_dense() for g in found)


def call(closure: Callable[..., Tensor] | None, *batch: Tensor) -> Tensor:
    """Call the closure, and check that there is one and that it returns a tensor."""
    if closure is None:
        raise ArgumentTypeError(
            "closure is None; the loss is evaluated at several draws of the weights, so it must be a function that "
            "returns the loss: opt.step(lambda: loss_fn(model(x), y))."
        )
    loss = closure(*batch)
    if not isinstance(loss, Tensor):
        raise ArgumentTypeError(f"closure returned {loss!r}; it must return a tensor: look for a missing return.")
    return loss

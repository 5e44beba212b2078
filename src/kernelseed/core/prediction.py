"""Prediction: the posterior mean or an average over draws, of any module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from kernelseed.core.arguments import check_count
from kernelseed.core.batchnorm import averaging, batch_norms, blank_statistics
from kernelseed.core.dropout import DropoutPass, dropout_layers
from kernelseed.core.inputs import Data, Passes, SameInputs, rows_of, to_place
from kernelseed.core.likelihoods import Categorical, Likelihood
from kernelseed.core.network import BayesianModule, Draw
from kernelseed.core.predictive import Classification, Regression, concatenate, converted
from kernelseed.core.seeds import derive_seed, generator_for
from kernelseed.core.stacked import EachDraw
from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.fast import current_costs
from kernelseed.models import ResNet

# Of a ResNet-18, 32 draws are 1.4 GB.
DRAWS_AT_ONCE = 32
P = TypeVar("P", Classification, Regression)
Member = nn.Module | Draw | DropoutPass
AnyDraw = Draw | DropoutPass


@overload
def predict(
    net: Member | Sequence[Member],
    data: Data,
    samples: int = ...,
    *,
    likelihood: None = ...,
    update_bn: Data | None = ...,
    seed: int = ...,
    batch_size: int = ...,
) -> Classification: ...
@overload
def predict(
    net: Member | Sequence[Member],
    data: Data,
    samples: int = ...,
    *,
    likelihood: Likelihood[P],
    update_bn: Data | None = ...,
    seed: int = ...,
    batch_size: int = ...,
) -> P: ...


@torch.no_grad()
def predict(
    net: Member | Sequence[Member],
    data: Data,
    samples: int = 10,
    *,
    likelihood: Any = None,
    update_bn: Data | None = None,
    seed: int = 0,
    batch_size: int = 256,
) -> Any:
    """Predict for a tensor or a loader: `samples` draws averaged, or the posterior mean with `samples=0`.

    net         a BayesianModule; a plain module, whose dropout layers, if any, make the draws (MC-dropout); or a
                sequence of draws or modules, all averaged (an ensemble)
    data        a tensor of inputs, or batches: inputs; a tuple of inputs with the labels last, `(x, y)` or
                `(x1, x2, y)`; or a mapping of keyword arguments, in which labels are left out
    likelihood  default Categorical(), which gives a `Classification`; Gaussian(...) gives a `Regression`
    update_bn   training inputs, given as data is, from which each draw gets BatchNorm statistics of its own; a few
                thousand examples do. Default: the running statistics, which are averages over many draws
    seed        the same seed gives the same draws, whatever the batch size; members of an ensemble differ
    batch_size  rows at a time, where data is a tensor

    Up to 32 draws are in memory at a time, and the data set is gone over once for them: data that can be iterated only
    once takes no more. Modes and buffers of the net are as before when it returns or raises.

    >>> import kernelseed as ks
    >>> net = ks.germinate(nn.Linear(20, 3))
    >>> ks.predict(net, torch.randn(7, 20), samples=4).probs.shape
    torch.Size([7, 3])
    """
    check_count("samples", samples, 0, "take 0 for the posterior mean, or the number of draws to average")
    check_count("batch_size", batch_size, 1, "a batch has at least one row")
    check_count("seed", seed, 0, "any such number does")
    likelihood = Categorical() if likelihood is None else likelihood
    members = _members(net)
    with evaluating([_module_of(member) for member in members]):
        several, draws = _look_ahead(_all_draws(members, samples, seed))
        batches = Passes("data", data, batch_size, several)
        training = None if update_bn is None else Passes("update_bn", update_bn, batch_size, several, same_order=False)
        found, count = _predict(draws, batches, training, likelihood)
        dtype = next(iter(vars(found).values())).dtype
        while several and (following := _predict(draws, batches, training, likelihood)) is not None:
            part, more = following
            count += more
            found = converted(found, torch.float64).merged(converted(part, torch.float64), more / count)
    return converted(found, dtype)


def _look_ahead(draws: Iterator[AnyDraw]) -> tuple[bool, Iterator[AnyDraw]]:
    """Whether there are more draws than are held at once; and all the draws."""
    first = list(islice(draws, DRAWS_AT_ONCE + 1))  # a small network's next are made at once, then
    return len(first) > DRAWS_AT_ONCE, chain(iter(first), draws)  # an iterator lets go of its list at the end


def _predict(draws: Iterator[AnyDraw], data: Passes, training: Passes | None, likelihood: Any) -> Any:
    """The prediction of the next draws, in one pass over the data, and how many they are; None if there are no more."""
    chunk = list(islice(draws, DRAWS_AT_ONCE))
    if not chunk:
        return None
    if training is not None:
        chunk = _with_own_statistics(chunk, training)
    place = _place_of(chunk[0])
    each_draw, parts = EachDraw(chunk), []
    for x in data:
        outputs = each_draw(_laid_out(to_place(x, *place), chunk[0].skeleton))
        parts.append(converted(likelihood.predictive(outputs), torch.device("cpu")))
    if not parts:
        raise ArgumentError("data yields no batches; give a tensor, or a loader that can be iterated (again).")
    return concatenate(parts), len(chunk)


def _laid_out(x: Any, skeleton: nn.Module) -> Any:
    """Images as a ResNet of ours is faster. Other networks may need them as they are, for a `view` of an output."""
    if type(skeleton) is not ResNet or not isinstance(x, Tensor) or x.dim() != 4 or not x.is_cpu:
        return x
    if skeleton.conv1.out_channels % 8:  # as in training, where fewer are not safe
        return x
    return x.to(memory_format=current_costs().layout)  # every layer after keeps to it


def make_draws(net: Member | Sequence[Member], samples: int, seed: int) -> list[AnyDraw]:
    """The networks to average: draws, dropout passes, or just the one network where nothing is random."""
    return list(_all_draws(_members(net), samples, seed))


def _members(net: Member | Sequence[Member]) -> list[Member]:
    members: list[Member] = list(net) if isinstance(net, (Sequence, nn.ModuleList)) else [net]
    if not members:
        raise ArgumentError("net is an empty sequence; give at least one module or draw to average.")
    return members


def _all_draws(members: list[Member], samples: int, seed: int) -> Iterator[AnyDraw]:
    """Each member of an ensemble has noise of its own."""
    return chain.from_iterable(_draws(member, samples, seed, i) for i, member in enumerate(members))


def _draws(net: Member, samples: int, seed: int, member: int) -> Iterator[AnyDraw]:
    """One after another, so that no more of them are in memory than somebody holds."""
    if isinstance(net, (Draw, DropoutPass)):
        yield net
    elif isinstance(net, BayesianModule):
        posterior = net.posterior()
        if samples == 0 or all(decoded.fixed for decoded in posterior.decoded.values()):
            yield posterior.mean().weights_only()
            return
        generator = generator_for("prediction", seed, member)
        for start in range(0, samples, DRAWS_AT_ONCE):
            yield from posterior.draws(min(DRAWS_AT_ONCE, samples - start), generator)
    elif samples and (inside := [name for name, m in net.named_modules() if isinstance(m, BayesianModule)]):
        raise ArgumentError(
            f"net.{inside[0]} is a BayesianModule, but net is not, so it can't be drawn from; convert the whole model "
            "(where= chooses the part), or take samples=0 for the posterior mean."
        )
    elif samples and dropout_layers(net):
        for i in range(samples):
            yield DropoutPass(net, derive_seed("dropout", seed, member, i))
    else:
        yield Draw(net)


def _with_own_statistics(draws: list[AnyDraw], batches: Passes) -> list[AnyDraw]:
    """The draws, each with BatchNorm statistics that are averages over these batches."""
    normed = {i: draw for i, draw in enumerate(draws) if batch_norms(draw.skeleton)}
    own = {i: replace(draw, buffers=blank_statistics(draw.skeleton)) for i, draw in normed.items()}
    estimating = [replace(draw, attributes=averaging(draw.skeleton)) for draw in own.values()]
    rows, empty, run = None, True, SameInputs()
    for batch in batches:
        empty, before, rows = False, rows, rows_of(batch)
        if rows == 1 and before is not None and before > 1:
            continue  # what is left over after the last whole batch: one row has no variance
        for draw in estimating:
            _estimate(run, draw, batch)
    if empty:
        raise ArgumentError("update_bn yields no batches; give some training data, a few thousand examples.")
    return [own.get(i, draw) for i, draw in enumerate(draws)]


def _estimate(run: SameInputs, draw: AnyDraw, batch: Any) -> None:
    try:
        run(draw, to_place(batch, *_place_of(draw)))
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ArgumentError(
            "update_bn has batches of one example, whose variance BatchNorm can't estimate; give more examples, in "
            "larger batches."
        ) from error


@contextmanager
def evaluating(modules: list[nn.Module]) -> Iterator[None]:
    """Eval mode for all, and each submodule's own mode back whatever happens."""
    everything = {m for module in modules for m in module.modules()}
    train = [m for m in everything if m.training]
    # nn.Module.__setattr__ takes longer than a small layer; some modules do more than to remember the mode.
    simple = all(type(m).train is nn.Module.train and "training" in vars(m) for m in everything)
    try:
        for m in train if simple else ():
            vars(m)["training"] = False
        for module in () if simple else modules:
            module.eval()
        yield
    finally:
        for m in train:
            if simple:
                vars(m)["training"] = True
            else:
                m.training = True


def _module_of(net: Member) -> nn.Module:
    if isinstance(net, nn.Module):
        return net
    if isinstance(net, (Draw, DropoutPass)):
        return net.skeleton
    raise ArgumentTypeError(f"net is or has a {type(net).__name__}; give a module, a draw, or a list of them.")


def _place_of(draw: AnyDraw) -> tuple[torch.device, bool]:
    """Where its tensors are, and whether they are double. Where all parameters are Bayesian, the skeleton has none."""
    samples = draw.samples.values() if isinstance(draw, Draw) else ()
    for tensor in chain(draw.skeleton.parameters(), (sample.value for sample in samples), draw.skeleton.buffers()):
        return tensor.device, tensor.dtype == torch.float64
    return torch.device("cpu"), False

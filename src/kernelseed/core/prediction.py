"""Prediction: the posterior mean or an average over draws, of any module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import chain
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kernelseed.core.batchnorm import batch_norms, estimate_statistics
from kernelseed.core.dropout import DropoutPass, dropout_layers
from kernelseed.core.likelihoods import Categorical, Likelihood
from kernelseed.core.network import BayesianModule, Draw
from kernelseed.core.objective import call, is_positional
from kernelseed.core.predictive import Classification, Regression, concatenate
from kernelseed.core.seeds import derive_seed, generator_for
from kernelseed.errors import ArgumentError, ArgumentTypeError

TARGET_KEYS = {"label", "labels", "target", "targets"}
P = TypeVar("P", Classification, Regression)
Member = nn.Module | Draw | DropoutPass
Data = Tensor | Iterable[Any]


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

    Each draw is made once for the whole data set and held until the end: samples x dense weights in memory. Modes
    and buffers of the net are as before when it returns or raises.

    >>> import kernelseed as ks
    >>> net = ks.germinate(nn.Linear(20, 3))
    >>> ks.predict(net, torch.randn(7, 20), samples=4).probs.shape
    torch.Size([7, 3])
    """
    if samples < 0:
        raise ArgumentError(f"samples is {samples}; take 0 for the posterior mean, or the number of draws to average.")
    if batch_size < 1:
        raise ArgumentError(f"batch_size is {batch_size}; a batch has at least one row.")
    likelihood = Categorical() if likelihood is None else likelihood
    members: list[Member] = list(net) if isinstance(net, (Sequence, nn.ModuleList)) else [net]
    if not members:
        raise ArgumentError("net is an empty sequence; give at least one module or draw to average.")
    with evaluating([_module_of(member) for member in members]):
        draws = [draw for i, member in enumerate(members) for draw in make_draws(member, samples, seed, i)]
        if update_bn is not None:
            batches = _without_a_rest_of_one(list(_inputs(update_bn, batch_size)))
            if not batches:
                raise ArgumentError("update_bn yields no batches; give some training data, a few thousand examples.")
            draws = [_with_own_statistics(draw, batches) for draw in draws]
        device = _device_of(draws[0])
        parts: list[Any] = []
        for x in _inputs(data, batch_size):
            x = _to(x, device)
            parts.append(_on_cpu(likelihood.predictive([call(draw, x) for draw in draws])))
    if not parts:
        raise ArgumentError("data yields no batches; give a tensor, or a loader that can be iterated (again).")
    return concatenate(parts)


def make_draws(net: Member, samples: int, seed: int, member: int = 0) -> list[Draw | DropoutPass]:
    """The networks to average: draws, dropout passes, or just the one network where nothing is random.

    member  which of an ensemble it is: each has noise of its own
    """
    if isinstance(net, (Draw, DropoutPass)):
        return [net]
    if isinstance(net, BayesianModule):
        posterior = net.posterior()
        if samples == 0 or all(decoded.fixed for decoded in posterior.decoded.values()):
            return [posterior.mean().weights_only()]
        generator = generator_for("prediction", seed, member)
        return [posterior.draw(generator).weights_only() for _ in range(samples)]
    inside = [name for name, module in net.named_modules() if isinstance(module, BayesianModule)]
    if samples and inside:
        raise ArgumentError(
            f"net.{inside[0]} is a BayesianModule, but net is not, so it can't be drawn from; convert the whole model "
            "(where= chooses the part), or take samples=0 for the posterior mean."
        )
    if samples and dropout_layers(net):
        return [DropoutPass(net, derive_seed("dropout", seed, member, i)) for i in range(samples)]
    return [Draw(net)]


def _with_own_statistics(draw: Draw | DropoutPass, batches: list[Any]) -> Draw | DropoutPass:
    if not batch_norms(draw.skeleton):
        return draw
    device = _device_of(draw)

    def run(buffers: dict[str, Tensor], batch: Any) -> None:
        call(replace(draw, buffers=buffers), _to(batch, device))

    return replace(draw, buffers=estimate_statistics(draw.skeleton, run, batches))


@contextmanager
def evaluating(modules: list[nn.Module]) -> Iterator[None]:
    """Eval mode for all, and each submodule's own mode back whatever happens."""
    modes = {m: m.training for module in modules for m in module.modules()}
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for m, training in modes.items():
            m.training = training


def _inputs(data: Data, batch_size: int) -> Iterator[Any]:
    if isinstance(data, Mapping):
        raise ArgumentTypeError("data is a mapping, which is one batch; give batches: [data].")
    if isinstance(data, Tensor):
        # Of nearly the same size: to BatchNorm each counts as much as another, and one row alone has no variance. An
        # empty tensor is one empty batch, so that an empty prediction has the right shape.
        yield from data.tensor_split(max(1, -(-len(data) // batch_size)))
    else:
        yield from map(_inputs_of, data)


def _without_a_rest_of_one(batches: list[Any]) -> list[Any]:
    """The batches, without a last one of a single row: it has no variance, and would count as much as the others."""
    rest_of_one = len(batches) > 1 and _rows(batches[-1]) == 1 != _rows(batches[0])
    return batches[:-1] if rest_of_one else batches


def _rows(batch: Any) -> int | None:
    """How many examples a batch has, as far as its first tensor tells."""
    while not isinstance(batch, Tensor):
        values = list(batch.values() if isinstance(batch, Mapping) else batch if is_positional(batch) else ())
        if not values:
            return None
        batch = values[0]
    return len(batch) if batch.ndim else None


def _inputs_of(batch: Any) -> Any:
    """The inputs of a loader's batch, labels left out."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in TARGET_KEYS}
    if is_positional(batch):
        inputs = batch[:-1] if len(batch) > 1 else batch
        return inputs[0] if len(inputs) == 1 else inputs
    return batch


def _to(x: Any, device: torch.device) -> Any:
    if isinstance(x, (Tensor, PackedSequence)):
        return x.to(device)  # type: ignore[arg-type]
    if isinstance(x, Mapping):
        return {key: _to(value, device) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        moved = [_to(value, device) for value in x]
        return type(x)(*moved) if hasattr(x, "_fields") else type(x)(moved)  # a named tuple takes them one by one
    return x


def _module_of(net: Member) -> nn.Module:
    if isinstance(net, nn.Module):
        return net
    if isinstance(net, (Draw, DropoutPass)):
        return net.skeleton
    raise ArgumentTypeError(f"net is or has a {type(net).__name__}; give a module, a draw, or a list of them.")


def _device_of(draw: Draw | DropoutPass) -> torch.device:
    """Where its tensors are. A skeleton whose parameters are all Bayesian may have none itself."""
    samples = draw.samples.values() if isinstance(draw, Draw) else ()
    for tensor in chain(draw.skeleton.parameters(), draw.skeleton.buffers(), (sample.value for sample in samples)):
        return tensor.device
    return torch.device("cpu")


def _on_cpu(prediction: P) -> P:
    return type(prediction)(*(getattr(prediction, f.name).cpu() for f in fields(prediction)))

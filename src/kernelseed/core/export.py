"""Export: a plain module again, with no trace of this library in it."""

from __future__ import annotations

import copy

import torch
from torch import nn

from kernelseed.core.network import BayesianModule, Draw


@torch.no_grad()
def collapse(net: BayesianModule, draw: Draw | None = None) -> nn.Module:
    """An ordinary module of the model's own class: dense weights at the posterior mean, or at the draw given.

    It needs no kernelseed to run, and goes wherever plain modules go: torch.export, ONNX, quantisation.

    >>> import kernelseed as ks
    >>> type(collapse(ks.germinate(nn.Linear(20, 30)))).__name__
    'Linear'
    """
    if not isinstance(net, BayesianModule):
        raise TypeError(f"net is a {type(net).__name__}; only a BayesianModule collapses, others are plain already.")
    draw = net.mean() if draw is None else draw
    if draw.skeleton is not net.skeleton:
        raise ValueError("draw was made by another network; pass a draw of this one: collapse(net, net.draw()).")
    plain = copy.deepcopy(net.skeleton)
    for name, sample in draw.samples.items():
        # Germination may hand out transposed views; what is stored and exported is laid out plainly.
        value = sample.value.detach().clone(memory_format=torch.contiguous_format)
        trained = any(p.requires_grad for p in net.weights[name].parameters())
        parameter = nn.Parameter(value, requires_grad=trained)
        for place in (name, *(alias for alias, first in draw.aliases.items() if first == name)):
            path, _, leaf = place.rpartition(".")
            setattr(plain.get_submodule(path), leaf, parameter)
    for name, value in draw.buffers.items():
        plain.get_buffer(name).copy_(value)
    return plain

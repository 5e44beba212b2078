"""BatchNorm for draws. Running statistics are averages over many draws and fit none of them, so re-estimate them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from kernelseed.errors import ArgumentError


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that keep running statistics, by name."""
    return {name: m for name, m in module.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is not None}


@torch.no_grad()
def estimate_statistics(
    module: nn.Module, run: Callable[[dict[str, Tensor], Any], Any], batches: Iterable[Any]
) -> dict[str, Tensor]:
    """BatchNorm buffers that are plain averages over the batches.

    `run(buffers, batch)` must run the module with these buffers instead of its own, which are not changed.
    """
    layers = batch_norms(module)
    buffers: dict[str, Tensor] = {}
    for name, layer in layers.items():
        for key, value in layer.named_buffers(recurse=False):
            # From zero: with momentum None the first batch replaces the initial value completely.
            buffers[f"{name}.{key}" if name else key] = torch.zeros_like(value)
    with _averaging(list(layers.values())):
        for batch in batches:
            try:
                run(buffers, batch)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise ArgumentError(
                    "update_bn has a batch of one example, which has no variance; give at least two examples a batch."
                ) from None
    return buffers


@contextmanager
def _averaging(layers: list[_BatchNorm]) -> Iterator[None]:
    """Train mode and cumulative averages for these layers only; both are restored at the end, also after an error."""
    before = [(layer.training, layer.momentum) for layer in layers]
    try:
        for layer in layers:
            layer.training, layer.momentum = True, None
        yield
    finally:
        for layer, (training, momentum) in zip(layers, before, strict=True):
            layer.training, layer.momentum = training, momentum

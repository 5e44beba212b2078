"""BatchNorm for draws. Running statistics are averages over many draws and fit none of them, so re-estimate them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that keep running statistics, by name."""
    return {name: m for name, m in module.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is not None}


def blank_statistics(module: nn.Module) -> dict[str, Tensor]:
    """BatchNorm buffers to begin with, by the names that the module has for them."""
    # From zero: with momentum None the first batch replaces the start altogether.
    return {
        f"{name}.{key}" if name else key: torch.zeros_like(value)
        for name, layer in batch_norms(module).items()
        for key, value in layer.named_buffers(recurse=False)
    }


@contextmanager
def averaging(modules: Iterable[nn.Module]) -> Iterator[None]:
    """BatchNorm layers in train mode, their statistics plain averages over batches; back whatever happens."""
    layers = list({layer: None for module in modules for layer in batch_norms(module).values()})
    before = [(layer.training, layer.momentum) for layer in layers]
    try:
        for layer in layers:
            layer.training, layer.momentum = True, None
        yield
    finally:
        for layer, (training, momentum) in zip(layers, before, strict=True):
            layer.training, layer.momentum = training, momentum

"""BatchNorm for draws. Running statistics are averages over many draws and fit none of them, so re-estimate them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from kernelseed.core.twin import Attributes


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


def averaging(module: nn.Module) -> Attributes:
    """BatchNorm layers in train mode, their statistics plain averages over batches: attributes for a call."""
    return {layer: {"training": True, "momentum": None} for layer in batch_norms(module).values()}

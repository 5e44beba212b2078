"""Whether somebody follows the operations instead of the numbers."""

from __future__ import annotations

import torch


def is_traced() -> bool:
    """Under torch.compile or torch.func, which take plain tensors only, and no C kernels."""
    return torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None

"""Where a training left the finite numbers: which layer, weight or gradient was the first.

Every step is checked on a CPU. Elsewhere a look would make each step wait for the device, so the end of an epoch has to
do: there the weights are checked before they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from kernelseed.errors import NonFiniteError


def require_finite_loss(loss: Tensor) -> None:
    """An error if a loss is not finite."""
    if loss.is_cpu and not loss.isfinite().all():
        raise NonFiniteError(f"the loss is {loss.detach().mean().item()}")


def require_finite_gradients(net: nn.Module) -> None:
    """An error that names a parameter whose gradient is not finite."""
    grads = {name: p.grad for name, p in net.named_parameters() if p.grad is not None and p.grad.is_cpu}
    if torch.nn.utils.get_total_norm(grads.values()).isfinite():
        return
    for name, grad in grads.items():
        if not grad.isfinite().all():
            raise NonFiniteError(f"the gradient of {plain_name(name)} is not finite")


def require_finite_weights(net: nn.Module) -> None:
    """An error that names a parameter or buffer which is not finite."""
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        if not tensor.isfinite().all():
            raise NonFiniteError(f"{plain_name(name)} is not finite after the last step")


def first_layer(net: nn.Module, run: Callable[[], Any]) -> str | None:
    """The first layer whose output is not finite while `run` runs the network."""
    found: list[str] = []

    def watch(name: str, layer: nn.Module) -> Any:
        def look(_layer: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not output.isfinite().all():
                found.append(plain_name(name))

        return layer.register_forward_hook(look)

    with ExitStack() as hooks, suppress(NonFiniteError):
        for name, layer in net.named_modules():
            if name and not any(layer.children()):
                hooks.callback(watch(name, layer).remove)
        run()
    return found[0] if found else None


def plain_name(name: str) -> str:
    """The name in the model that the user knows.

    >>> plain_name("skeleton.layer1.0.conv1")
    'layer1.0.conv1'
    """
    return name.removeprefix("skeleton.").removeprefix("weights.")

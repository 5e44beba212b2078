"""Monte Carlo dropout: a network with dropout on and everything else in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from kernelseed.core.seeds import generator_for
from kernelseed.core.twin import call_with

ELEMENTWISE = (nn.Dropout,)
CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def dropout_layers(module: nn.Module) -> list[_DropoutNd]:
    """The dropout layers with a positive rate. Dropout called as a function can't be seen from outside."""
    return [m for m in module.modules() if isinstance(m, ELEMENTWISE + CHANNELWISE) and m.p > 0]


@dataclass(eq=False)
class DropoutPass:
    """One pass of MC-dropout over a data set: call it batch by batch, in order, with the module in eval mode.

    Each example gets its own mask. Each call of a dropout layer has its own random stream, so on the CPU, whose
    generator is sequential, the masks do not depend on the batch size.
    """

    skeleton: nn.Module
    seed: int
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    streams: list[torch.Generator] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on the next batch of the data set."""
        calls = 0

        def drop(layer: Any, _: Any, output: Tensor) -> Tensor:
            nonlocal calls
            if calls == len(self.streams):
                self.streams.append(generator_for("dropout mask", self.seed, calls, device=output.device))
            shape = output.shape
            if isinstance(layer, CHANNELWISE):
                shape = torch.Size((*shape[:2], *(1 for _ in shape[2:])))
            keep = 1 - layer.p
            mask = torch.rand(shape, generator=self.streams[calls], device=output.device) < keep
            calls += 1
            return output * mask / keep if keep > 0 else torch.zeros_like(output)

        hooks = [layer.register_forward_hook(drop) for layer in dropout_layers(self.skeleton)]
        try:
            return call_with(self.skeleton, self.buffers, *args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()

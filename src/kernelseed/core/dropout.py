"""Monte Carlo dropout: a network with dropout on and everything else in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from kernelseed.core.seeds import generator_for
from kernelseed.core.twin import Attributes, run_with

ELEMENTWISE = (nn.Dropout,)
CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
UNBATCHED = {nn.Dropout1d: 2, nn.Dropout3d: 4}
"""The axes of an input without a batch axis; PyTorch takes none of `nn.Dropout2d` as such."""


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
    attributes: Attributes = field(default_factory=dict)
    streams: list[torch.Generator] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on the next batch of the data set."""
        calls = 0

        def drop(layer: _DropoutNd, *given: Any, **named: Any) -> Tensor:
            nonlocal calls
            output = layer.forward(*given, **named)
            if calls == len(self.streams):
                self.streams.append(generator_for("dropout mask", self.seed, calls, device=output.device))
            shape = output.shape
            if isinstance(layer, CHANNELWISE):
                axes = 1 if output.dim() == UNBATCHED.get(type(layer)) else 2
                shape = torch.Size((*shape[:axes], *(1 for _ in shape[axes:])))
            keep = 1 - layer.p
            mask = torch.rand(shape, generator=self.streams[calls], device=output.device) < keep
            calls += 1
            return output * mask / keep if keep > 0 else torch.zeros_like(output)

        attributes: dict[nn.Module, Mapping[str, Any]] = dict(self.attributes)
        attributes |= {layer: {"forward": partial(drop, layer)} for layer in dropout_layers(self.skeleton)}
        return run_with(self.skeleton, self.buffers, attributes, args, kwargs)

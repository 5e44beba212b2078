"""The weight distributions of a network, as a mapping and as a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from kernelseed.core.weights import WeightDistribution


class WeightTree(nn.Module, Mapping[str, WeightDistribution]):
    """Weight distributions by parameter name.

    They are stored as nested modules, so that a state dict has keys like `weights.layer1.0.conv1.weight.seed`.
    A tied parameter is stored under its first name and found under all of its names.
    """

    # Mapping would compare contents; modules are compared by identity.
    __hash__ = nn.Module.__hash__
    __eq__ = object.__eq__

    def __init__(self, weights: Mapping[str, WeightDistribution], aliases: Mapping[str, str]) -> None:
        super().__init__()
        self.names = tuple(weights)
        self.aliases = dict(aliases)
        for name, distribution in weights.items():
            *path, leaf = name.split(".")
            node: nn.Module = self
            for part in path:
                # Directly into _modules, because a layer of the user's model may be called "keys" or "items".
                node = node._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
            node._modules[leaf] = distribution

    def __getitem__(self, name: str) -> WeightDistribution:
        node: Any = self
        if name not in self:
            raise KeyError(f"no weight distribution {name!r}; there are: {', '.join(self.names)}")
        for part in self.aliases.get(name, name).split("."):
            node = node._modules[part]
        return node

    def __contains__(self, name: object) -> bool:
        return name in self.names or name in self.aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

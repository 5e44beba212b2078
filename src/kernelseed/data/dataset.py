"""What a data set is once it is in memory: uint8 pictures, labels, and the constants that normalise them."""

from __future__ import annotations

import enum
import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelseed.errors import DataError


def require(module: str, purpose: str) -> Any:
    """Import an optional package where it is needed; importing kernelseed.data takes torch and numpy only."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f'{purpose} needs {module} ({error}): pip install "kernelseed[data]"') from error


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Pictures (uint8, N x C x H x W) and their labels (int64, N)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be a uint8 tensor N x C x H x W, got {self.images.dtype} of shape "
                f"{tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be an int64 tensor with one label for each of {len(self.images)} images, got "
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Split({len(self)} x {' x '.join(map(str, self.images.shape[1:]))})"

    def select(self, index: Tensor) -> Split:
        """The examples at `index`, numbers or a mask."""
        return Split(self.images[index], self.labels[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory. Pictures stay uint8; `normalise` turns a batch of them into float32."""

    name: str
    train: Split
    validation: Split | None
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel, for pixels in [0, 1]
    std: tuple[float, ...]


class Stream(enum.IntEnum):
    """What randomness is for; each purpose has a stream of its own."""

    SPLIT = 1
    ORDER = 2
    AUGMENTATION = 3


def generator_for(stream: Stream, *key: int) -> torch.Generator:
    """A generator that is a pure function of the stream and its key, such as (seed, epoch).

    torch keeps 32 bits of a seed, so sums of seed and epoch would soon repeat each other; numpy's
    SeedSequence hashes them, and promises the same result in every version.
    """
    return torch.Generator().manual_seed(int(np.random.SeedSequence((stream, *key)).generate_state(1)[0]))


def stratified_split(split: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Two parts of a split, the second with `fraction` of each class: at least one example, but never all."""
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    generator = generator_for(Stream.SPLIT, seed)
    taken = torch.zeros(len(split), dtype=torch.bool)
    for label in split.labels.unique():
        members = (split.labels == label).nonzero().squeeze(1)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        taken[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return split.select(~taken), split.select(taken)


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from its histogram: no float copy of the pictures."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        weights = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (weights * values).sum()
        std = (weights * (values - mean) ** 2).sum().sqrt()
        means.append(mean.item())
        stds.append(max(std.item(), 1 / 255))  # a blank channel must not divide by zero
    return tuple(means), tuple(stds)

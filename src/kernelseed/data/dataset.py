"""What a data set is once it is in memory: uint8 images, labels, and the constants that normalise them."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from kernelseed.core.seeds import generator_for
from kernelseed.errors import ArgumentError


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Images (uint8, N x C x H x W) and their labels (int64, N)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ArgumentError(
                f"images is {self.images.dtype} of shape {tuple(self.images.shape)}; it must be uint8 of shape "
                "(N, C, H, W): give pixels from 0 to 255."
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ArgumentError(
                f"labels is {self.labels.dtype} of shape {tuple(self.labels.shape)}; it must be int64 of shape "
                f"({len(self.images)},): give one class for each image."
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
    """A data set in memory. Images stay uint8; `normalise` turns a batch of them into float32."""

    name: str
    train: Split
    validation: Split | None
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel, for pixels in [0, 1]
    std: tuple[float, ...]


def stratified_split(split: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Two parts of a split, the second with `fraction` of each class: at least one example, but never all."""
    check_seed(seed)
    generator = generator_for("split", seed)
    taken = torch.zeros(len(split), dtype=torch.bool)
    for label in split.labels.unique():
        members = (split.labels == label).nonzero().squeeze(1)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        taken[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return split.select(~taken), split.select(taken)


def check_seed(seed: int) -> None:
    """Raise unless the seed is one that every part of a run takes."""
    if not isinstance(seed, Integral) or seed < 0:
        raise ArgumentError(f"seed is {seed!r}; it must be an integer of at least 0: any such number does.")


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from its histogram: no float copy of the images."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        weights = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (weights * values).sum()
        std = (weights * (values - mean) ** 2).sum().sqrt()
        means.append(mean.item())
        stds.append(max(std.item(), 1 / 255))  # a blank channel must not divide by zero
    return tuple(means), tuple(stds)

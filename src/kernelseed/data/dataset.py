"""What a data set is once it is in memory: images or rows of a table, labels or numbers, and what normalises them."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from kernelseed.core import generator_for
from kernelseed.data.columns import Table
from kernelseed.errors import ArgumentError


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Images (uint8, N x C x H x W) or rows of a table (float64, N x features), and what is to be said of them.

    That is a class (int64, N) or, for the rows of a table, a number (float32, N x 1).
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if (self.inputs.dtype, self.inputs.ndim) not in ((torch.uint8, 4), (torch.float64, 2)):
            raise ArgumentError(
                f"images is {self.inputs.dtype} of shape {tuple(self.inputs.shape)}; it must be uint8 of shape "
                "(N, C, H, W): give pixels from 0 to 255; or float64 of shape (N, features), for rows of a table."
            )
        count, is_number = len(self.inputs), self.targets.dtype == torch.float32 and self.inputs.ndim == 2
        if not is_number and (self.targets.dtype != torch.int64 or self.targets.shape != (count,)):
            raise ArgumentError(
                f"labels is {self.targets.dtype} of shape {tuple(self.targets.shape)}; it must be int64 of shape "
                f"({count},): give one class for each image."
            )
        if is_number and self.targets.shape != (count, 1):
            raise ArgumentError(
                f"targets is of shape {tuple(self.targets.shape)}; it must be ({count}, 1): give each row one number."
            )
        for name, tensor in (("inputs", self.inputs), ("targets", self.targets)):
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise ArgumentError(f"{name} has NaN or infinity; all numbers must be finite: put them right.")

    @property
    def images(self) -> Tensor:
        """The inputs, by the name that they have for images."""
        return self.inputs

    @property
    def labels(self) -> Tensor:
        """The targets, by the name that they have for classes."""
        return self.targets

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"Split({len(self)} x {' x '.join(map(str, self.inputs.shape[1:]))})"

    def select(self, index: Tensor) -> Split:
        """The examples at `index`, numbers or a mask."""
        return Split(self.inputs[index], self.targets[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory. Images stay uint8; `normalise` turns a batch of them, or of rows, into float32."""

    name: str
    train: Split
    validation: Split | None
    test: Split
    class_names: tuple[str, ...]  # none where the targets are numbers
    mean: tuple[float, ...]  # of each channel, for pixels in [0, 1]; or of each feature
    std: tuple[float, ...]
    table: Table | None = None  # how rows are read, if they are a table's


def stratified_split(split: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Two parts of a split, the second with `fraction` of each class: at least one example, but never all.

    Where the targets are numbers, it is a fraction of all.
    """
    check_seed(seed)
    generator = generator_for("split", seed)
    taken = torch.zeros(len(split), dtype=torch.bool)
    classes = torch.zeros(len(split)) if split.targets.is_floating_point() else split.targets
    for label in classes.unique():
        members = (classes == label).nonzero().squeeze(1)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        taken[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return split.select(~taken), split.select(taken)


def check_seed(seed: int) -> None:
    """Raise unless the seed is one that every part of a run takes."""
    if not isinstance(seed, Integral) or seed < 0:
        raise ArgumentError(f"seed is {seed!r}; it must be an integer of at least 0: any such number does.")


def feature_statistics(rows: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column; 1 for one that is constant, which must not divide by zero."""
    std, mean = torch.std_mean(rows, 0, correction=0)
    constant = std <= 1e-12 * mean.abs()
    return tuple(mean.tolist()), tuple(std.where(~constant, torch.ones_like(std)).tolist())


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

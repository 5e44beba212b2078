"""The multilayer perceptron. Parameter names are those of torchvision.ops.MLP without a norm layer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.models.recipes import RecipeModel, dropout_rate, register, require_counts, require_rate


class MLP(RecipeModel, nn.Sequential):
    """Linear layers with ReLU and dropout between them; see `mlp` for the arguments."""

    builder = "mlp"

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        image_size: Sequence[int],
        widths: Sequence[int],
        dropout: float,
    ) -> None:
        super().__init__()
        self._arguments = {
            "num_classes": num_classes,
            "in_channels": in_channels,
            "image_size": list(image_size),
            "widths": list(widths),
        }
        sizes = (in_channels * math.prod(image_size), *widths, num_classes)
        for before, after in itertools.pairwise(sizes):
            if len(self):
                self.extend((nn.ReLU(), nn.Dropout(dropout)))
            self.append(nn.Linear(before, after))

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (N, ...) to logits (N, num_classes)."""
        return super().forward(x.flatten(1))

    def arguments(self) -> dict[str, Any]:
        """Those of the builder."""
        return {**self._arguments, "dropout": dropout_rate(self)}


@register
def mlp(
    num_classes: int = 10,
    in_channels: int = 3,
    image_size: Sequence[int] = (32, 32),
    *,
    widths: Sequence[int] = (200, 200),
    dropout: float = 0.0,
) -> MLP:
    """A multilayer perceptron: it flattens its input.

    image_size  height and width of the images; () where an input is a row of `in_channels` numbers
    widths      of the hidden layers; () for logistic regression
    dropout     the rate after each activation

    >>> import torch
    >>> mlp(10, 1, (8, 8), widths=(50,))(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    require_counts(num_classes=num_classes, in_channels=in_channels)
    for name, numbers in (("image_size", image_size), ("widths", widths)):
        if not isinstance(numbers, list | tuple):
            raise ArgumentTypeError(f"{name} is {numbers!r}; it must be a list of whole numbers, such as [200, 200].")
        if len(numbers) > 1000:
            raise ArgumentError(f"{name} has {len(numbers):,} numbers; it must have at most 1,000: take fewer.")
        require_counts(**{f"{name}[{i}]": number for i, number in enumerate(numbers)})
    require_rate(dropout)
    return MLP(num_classes, in_channels, image_size, widths, dropout)

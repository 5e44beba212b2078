"""ResNet-18 as the paper uses it. Parameter names are torchvision's, so its checkpoints load."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.models.recipes import RecipeModel, register


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, with dropout between them."""

    def __init__(self, in_channels: int, channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """x plus its residual."""
        residual = self.dropout(F.relu(self.bn1(self.conv1(x))))
        return F.relu(self.bn2(self.conv2(residual)) + self.downsample(x))


class ResNet18(RecipeModel):
    """He et al. (2016), eighteen layers; see `resnet18` for the arguments."""

    builder = "resnet18"

    def __init__(self, num_classes: int, in_channels: int, stem: str, width: int, dropout: float) -> None:
        super().__init__()
        self._arguments = {"num_classes": num_classes, "in_channels": in_channels, "stem": stem, "width": width}
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)

        def stage(before: int, channels: int, stride: int) -> nn.Sequential:
            return nn.Sequential(
                BasicBlock(before, channels, stride, dropout), BasicBlock(channels, channels, 1, dropout)
            )

        self.layer1 = stage(width, width, 1)
        self.layer2 = stage(width, 2 * width, 2)
        self.layer3 = stage(2 * width, 4 * width, 2)
        self.layer4 = stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W) to logits (N, num_classes)."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))

    def arguments(self) -> dict[str, Any]:
        """Those of `resnet18`; the dropout rate is the one of now, which may have been set since."""
        rate = next(module.p for module in self.modules() if isinstance(module, nn.Dropout))
        return {**self._arguments, "dropout": rate}


@register
def resnet18(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    stem: str = "imagenet",
    width: int = 64,
    dropout: float = 0.0,
) -> ResNet18:
    """ResNet-18. The paper's MNIST and Fashion-MNIST numbers fit the "imagenet" stem, its CIFAR numbers "cifar".

    stem     "imagenet": 7x7 stride 2 and a max-pool; "cifar": 3x3 stride 1 and no pool
    width    channels of the first stage; 64 is the paper's, 16 is for small machines
    dropout  the rate after each block's first activation, where wide residual networks put it: dropping whole
             residuals or the shortcut would cut the identity path, dropping after a BatchNorm would shift it

    >>> resnet18(10, in_channels=1, width=8)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if stem not in ("imagenet", "cifar"):
        raise ArgumentError(f'stem is {stem!r}; allowed are "imagenet" and "cifar".')
    for name, value in (("num_classes", num_classes), ("in_channels", in_channels), ("width", width)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentTypeError(f"{name} is {value!r}; it must be an int of at least 1.")
        if value < 1:
            raise ArgumentError(f"{name} is {value}; it must be at least 1.")
    if not isinstance(dropout, (int, float)):
        raise ArgumentTypeError(f"dropout is {dropout!r}; it must be a number: 0 <= dropout < 1.")
    if not 0 <= dropout < 1:
        raise ArgumentError(f"dropout is {dropout}; it is the share of activations to drop: 0 <= dropout < 1.")
    return ResNet18(num_classes, in_channels, stem, width, dropout)

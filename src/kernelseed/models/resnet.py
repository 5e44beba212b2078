"""ResNet-18, 34 and 50. Parameter names are torchvision's, so its checkpoints load."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed.errors import ArgumentError
from kernelseed.models.recipes import RecipeModel, dropout_rate, register, require_counts, require_rate

STEMS = ("imagenet", "cifar", "small")
DROPOUT_IN = ("blocks", "layers")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, with dropout between them."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """x plus its residual."""
        residual = self.dropout(F.relu(self.bn1(self.conv1(x))))
        return F.relu(self.bn2(self.conv2(residual)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, dropout before the last, and a shortcut.

    The stride is on the 3x3, as in torchvision (version 1.5 of the network), not on the first 1x1 as in the paper.
    """

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """x plus its residual."""
        residual = F.relu(self.bn1(self.conv1(x)))
        residual = self.dropout(F.relu(self.bn2(self.conv2(residual))))
        return F.relu(self.bn3(self.conv3(residual)) + self.downsample(x))


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


def _stage(
    block: type[BasicBlock | Bottleneck], depth: int, before: int, channels: int, stride: int, dropout: float
) -> nn.Sequential:
    after = channels * block.expansion
    first = block(before, channels, stride, dropout)
    return nn.Sequential(first, *(block(after, channels, 1, dropout) for _ in range(depth - 1)))


def _dropping_after_each(stage: nn.Sequential, dropout: float) -> nn.Sequential:
    """With a dropout layer after each block, which keeps its name."""
    named = ((name, block, nn.Dropout(dropout)) for name, block in stage.named_children())
    return nn.Sequential(
        OrderedDict(pair for name, block, drop in named for pair in ((name, block), (f"dropout{name}", drop)))
    )


DEPTHS: dict[str, tuple[type[BasicBlock | Bottleneck], tuple[int, ...]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}
"""The block and how many of them each stage has."""


class ResNet(RecipeModel):
    """He et al. (2016); see `resnet18` for the arguments."""

    def __init__(
        self, builder: str, num_classes: int, in_channels: int, stem: str, width: int, dropout: float, dropout_in: str
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise ArgumentError(f"stem is {stem!r}; allowed are {', '.join(STEMS)}.")
        if dropout_in not in DROPOUT_IN:
            raise ArgumentError(f"dropout_in is {dropout_in!r}; allowed are {', '.join(DROPOUT_IN)}.")
        require_counts(num_classes=num_classes, in_channels=in_channels, width=width)
        require_rate(dropout)
        self.builder = builder
        self._arguments: dict[str, Any] = {
            "num_classes": num_classes,
            "in_channels": in_channels,
            "stem": stem,
            "width": width,
        }
        kernel, stride = {"imagenet": (7, 2), "cifar": (3, 1), "small": (3, 2)}[stem]
        self.conv1 = nn.Conv2d(in_channels, width, kernel, stride, padding=kernel // 2, bias=False)
        self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        block, depths = DEPTHS[builder]
        outside = width * block.expansion
        self.layer1 = _stage(block, depths[0], width, width, 1, dropout)
        self.layer2 = _stage(block, depths[1], outside, 2 * width, 2, dropout)
        self.layer3 = _stage(block, depths[2], 2 * outside, 4 * width, 2, dropout)
        self.layer4 = _stage(block, depths[3], 4 * outside, 8 * width, 2, dropout)
        self.fc = nn.Linear(8 * outside, num_classes)
        if dropout_in == "layers":
            self._arguments["dropout_in"] = dropout_in
            self.maxpool = nn.Sequential(nn.Dropout(dropout), self.maxpool)
            for name in ("layer1", "layer2", "layer3", "layer4"):
                setattr(self, name, _dropping_after_each(getattr(self, name), dropout))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W) to logits (N, num_classes)."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))

    def arguments(self) -> dict[str, Any]:
        """Those of the builder."""
        return {**self._arguments, "dropout": dropout_rate(self)}


@register
def resnet18(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    stem: str = "imagenet",
    width: int = 64,
    dropout: float = 0.0,
    dropout_in: str = "blocks",
) -> ResNet:
    """ResNet-18. The paper's MNIST and Fashion-MNIST numbers fit the "imagenet" stem, its CIFAR numbers "cifar".

    stem        "imagenet": 7x7 stride 2 and a max-pool; "cifar": 3x3 stride 1, no pool; "small": 3x3 stride 2, no pool
    width       channels of the first stage; 64 is the paper's, 16 is for small machines
    dropout     the rate before each block's last convolution, where wide residual networks put it: dropping whole
                residuals or the shortcut would cut the identity path, dropping after a BatchNorm would shift it
    dropout_in  "layers": also after every block and the first layer, so that every layer but that has inputs dropped

    >>> resnet18(10, in_channels=1, width=8)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return ResNet("resnet18", num_classes, in_channels, stem, width, dropout, dropout_in)


@register
def resnet34(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    stem: str = "imagenet",
    width: int = 64,
    dropout: float = 0.0,
    dropout_in: str = "blocks",
) -> ResNet:
    """ResNet-34; see `resnet18` for the arguments."""
    return ResNet("resnet34", num_classes, in_channels, stem, width, dropout, dropout_in)


@register
def resnet50(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    stem: str = "imagenet",
    width: int = 64,
    dropout: float = 0.0,
    dropout_in: str = "blocks",
) -> ResNet:
    """ResNet-50, of bottlenecks: a stage has four times its width on the outside; see `resnet18` for the arguments."""
    return ResNet("resnet50", num_classes, in_channels, stem, width, dropout, dropout_in)

"""ResNet-18 as the paper uses it. Parameter names are torchvision's, so its checkpoints load."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelseed.fast.taps import TrimmedConv2d, trim


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


class ResNet18(nn.Module):
    """He et al. (2016), eighteen layers; see `resnet18` for the arguments."""

    def __init__(self, num_classes: int, in_channels: int, stem: str, width: int, dropout: float) -> None:
        super().__init__()
        self.arguments = {"num_classes": num_classes, "in_channels": in_channels, "stem": stem, "width": width}
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
        raise ValueError(f'stem is {stem!r}; allowed are "imagenet" and "cifar".')
    for name, value in (("num_classes", num_classes), ("in_channels", in_channels), ("width", width)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1.")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}; it is the share of activations to drop: 0 <= dropout < 1.")
    return ResNet18(num_classes, in_channels, stem, width, dropout)


def recipe(model: nn.Module) -> dict[str, Any] | None:
    """How to build a model of this room again, as JSON; None for any other model."""
    if not isinstance(model, ResNet18):
        return None
    rate = next(m.p for m in model.modules() if isinstance(m, nn.Dropout))
    trimmed = {"trimmed": True} if isinstance(model.conv1, TrimmedConv2d) else {}
    return {"name": "resnet18", **model.arguments, "dropout": rate, **trimmed}


def from_recipe(given: dict[str, Any] | None) -> nn.Module:
    """The model that `recipe` describes."""
    if given is None:
        raise ValueError("the model is none of kernelseed.models, so its class is not known here")
    arguments = dict(given)
    if (name := arguments.pop("name")) != "resnet18":
        raise ValueError(f"model {name!r} is unknown; this version has resnet18")
    trimmed = arguments.pop("trimmed", False)  # as it was trained, so that predictions are the same to the last bit
    return trim(resnet18(**arguments)) if trimmed else resnet18(**arguments)

"""What a user's own module of models looks like, with what can be wrong in it; a file, so that a name leads here."""

from torch import nn


def convnet(num_classes, in_channels, channels=8):
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.0), nn.Linear(4 * channels, num_classes),
    )  # fmt: skip


class Linear(nn.Sequential):
    """Takes the size of the images, and no in_channels."""

    def __init__(self, image_size, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(image_size[0] * image_size[1], num_classes))


class Nested:
    convnet = staticmethod(convnet)


def anything(**options):
    return nn.Linear(**options)


def words(num_classes):
    return f"{num_classes} classes"


def two_numbers(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))


def wrong_size(num_classes):
    return nn.Linear(5, num_classes)


SEVEN = 7

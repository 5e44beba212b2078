"""`kernelseed reproduce` on a few images, for the data-parallel test: Lightning starts it once for every rank."""

import torch

from kernelseed.cli.app import app
from kernelseed.data import Dataset, Split
from kernelseed.training import config


def images(data):
    """A few of the data set's size."""
    size, channels, classes = (28, 1, 10) if data == "mnist" else (32, 3, 100)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (16, channels, size, size), dtype=torch.uint8, generator=generator)
    split, names = Split(pixels, torch.arange(16) % classes), tuple(map(str, range(classes)))
    return Dataset(data, split, None, split, names, (0.5,) * channels, (0.25,) * channels)


if __name__ == "__main__":
    config.load = lambda name, *given, **options: images(name)
    app()

"""`kernelseed reproduce` on a few pictures, for the data-parallel test: Lightning starts it once for every rank."""

import torch

from kernelseed.cli.app import app
from kernelseed.data.dataset import Dataset, Split
from kernelseed.training import config


def pictures(data):
    """A few of the data set's size."""
    size, channels, classes = (28, 1, 10) if data == "mnist" else (32, 3, 100)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (16, channels, size, size), dtype=torch.uint8, generator=generator)
    split, names = Split(images, torch.arange(16) % classes), tuple(map(str, range(classes)))
    return Dataset(data, split, None, split, names, (0.5,) * channels, (0.25,) * channels)


if __name__ == "__main__":
    config.load = lambda name, *given, **options: pictures(name)
    app()

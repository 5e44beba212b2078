"""Small networks for the tests."""

import itertools

import torch
from torch import nn

import kernelseed as ks
from kernelseed.testing.kinds import KINDS, Tied, Twice  # noqa: F401

DISTRIBUTIONS = {
    "mean_field": ks.bayesianize,
    "seed": lambda model: ks.germinate(model, 0.5, min_rank=1, over="weights"),
    "channels": lambda model: ks.germinate(model, 0.5, min_rank=1),
    "fixed": lambda model: ks.germinate(model, 0.5, min_rank=1, fixed=True),
}


def trained(net):
    """The net as if something had been learned: every weight has a deviation of its own, around softplus(-2)."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            leaf = name.rpartition(".")[2]
            if leaf in ("rho", "rho_offset"):
                parameter.fill_(-2.0)
            if leaf in ("rho", "rho_germinator", "seed_rho", "germinator_rho"):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(0.3 * noise.to(parameter.dtype))
    return net


def mlp(*widths):
    """A multilayer perceptron."""
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convnet(channels=4, classes=3, dropout=None):
    """Convolution, BatchNorm, perhaps a dropout layer, and a classifier."""
    middle = [] if dropout is None else [dropout]
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        *middle,
        nn.Conv2d(channels, channels, 2),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


def generator(seed=0):
    return torch.Generator().manual_seed(seed)

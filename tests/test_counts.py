"""Parameter counts against the paper's tables, digit by digit."""

import functools

import pytest
import torch

import kernelseed as ks

DELTAS = [1.0, 0.75, 0.5, 0.25]


@functools.cache
def build(classes, channels, stem):
    """On the meta device: counting needs no numbers."""
    with torch.device("meta"):
        return ks.models.resnet18(classes, in_channels=channels, stem=stem)


def count(module):
    return sum(p.numel() for p in module.parameters())


def printed(net, baseline):
    """The columns Params (millions, one decimal) and RS (relative to the baseline, two decimals)."""
    return f"{count(net) / 1e6:.1f}", f"{count(net) / count(baseline):.2f}"


# MNIST, Fashion-MNIST and CIFAR-10 have the same columns; CIFAR's stem changes no printed digit.
TEN_CLASSES = {
    "KSN": [("13.6", "1.22"), ("10.2", "0.91"), ("6.8", "0.61"), ("3.4", "0.31")],
    "FKSN": [("12.4", "1.11"), ("9.3", "0.83"), ("6.2", "0.56"), ("3.1", "0.28")],
    "BNN": ("22.3", "2.00"),
}
# CIFAR-100. Two of its numbers agree with no network here, and not with each other: FKSN at delta 1 is printed as
# 12.6M beside an RS of 1.11, which is 12.4 or 12.5M of 11.2M; and BNN is 22.4M in one row and 22.5M in the next.
HUNDRED_CLASSES = {
    "KSN": [("13.7", "1.22"), ("10.3", "0.91"), ("6.8", "0.61"), ("3.4", "0.31")],
    "FKSN": [("12.5", "1.11"), ("9.3", "0.83"), ("6.2", "0.56"), ("3.1", "0.28")],
    "BNN": ("22.4", "2.00"),
}


@pytest.mark.parametrize(
    ("model", "table"),
    [((10, 1, "imagenet"), TEN_CLASSES), ((10, 3, "cifar"), TEN_CLASSES), ((100, 3, "cifar"), HUNDRED_CLASSES)],
    ids=["mnist", "cifar10", "cifar100"],
)
@pytest.mark.parametrize("min_rank", [1, 16])  # the paper's and ours
def test_the_papers_columns(model, table, min_rank):
    model = build(*model)
    assert printed(model, model) == ("11.2", "1.00")
    assert printed(ks.bayesianize(model), model) == table["BNN"]
    for name in ("KSN", "FKSN"):
        for delta, expected in zip(DELTAS, table[name], strict=True):
            net = ks.germinate(model, delta, min_rank=min_rank, fixed=name == "FKSN", over="weights")
            assert printed(net, model) == expected


def test_exact_counts():
    model = build(10, 1, "imagenet")
    assert count(model) == 11_175_370
    # Twice the 11,165,760 weights; BatchNorm's 9,600 parameters and the ten biases stay plain.
    assert count(ks.bayesianize(model)) == 2 * 11_165_760 + 9_610
    for delta in DELTAS:
        seeds = germinators = layers = 0
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue
            small, large = sorted(parameter.shape[:2])
            rank = -(-small * int(100 * delta) // 100)
            taps = parameter[0, 0].numel()
            seeds, germinators, layers = seeds + rank * large * taps, germinators + small * rank, layers + 1
            assert name.endswith("weight")
        assert layers == 21
        # One learned offset of rho for each layer, counted.
        assert count(ks.germinate(model, delta, min_rank=1, over="weights")) == seeds + 2 * germinators + layers + 9_610
        assert count(ks.germinate(model, delta, min_rank=1, fixed=True)) == seeds + germinators + 9_610


def test_the_repr_says_how_many():
    net = ks.germinate(torch.nn.Linear(8, 8), 0.25, min_rank=1, over="weights")
    assert "1 distributions: 49 parameters for 64 weights" in repr(net)

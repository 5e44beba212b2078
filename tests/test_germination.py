"""Germination: what a seed and two germinators make of a weight, and where they start."""

import math

import pytest
import reference
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kinds import generator
from torch import nn

import kernelseed as ks
from kernelseed.core.ranks import seed_rank

shapes = st.tuples(st.integers(1, 7), st.integers(1, 7), st.lists(st.integers(1, 3), max_size=3).map(tuple)).map(
    lambda s: torch.Size((s[0], s[1], *s[2]))
)
deltas = st.floats(0.01, 1.0)
quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)


class Holder(nn.Module):
    """A module with just one weight."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return (x * self.weight).sum()


def germinated(weight, **kwargs):
    return ks.germinate(Holder(weight), **{"over": "weights", **kwargs}).weights["weight"]


def as_matrix(weight):
    """(C_f, C_F * prod(k)): the smaller channel axis first, the first when they are equal."""
    return (weight if weight.shape[0] <= weight.shape[1] else weight.transpose(0, 1)).flatten(1).double()


# --- germination is the paper's 1x1 convolution ----------------------------------------------------------------


@given(shapes, deltas, st.integers(1, 20))
@example(torch.Size((1, 1)), 1.0, 1)
@example(torch.Size((4, 4, 3, 3)), 0.5, 1)  # as many channels in as out
@quick
def test_it_is_a_1x1_convolution_of_the_seed(shape, delta, min_rank):
    distribution = germinated(torch.randn(shape, dtype=torch.float64), delta=delta, min_rank=min_rank)
    c_f, c_big = min(shape[:2]), max(shape[:2])
    c_pip = min(c_f, max(min_rank, math.ceil(delta * c_f)))
    assert distribution.seed.shape == (c_pip, c_big, *shape[2:])
    assert distribution.mean_germinator.shape == distribution.rho_germinator.shape == (c_f, c_pip)
    assert sorted(dict(distribution.named_parameters())) == ["mean_germinator", "rho_germinator", "rho_offset", "seed"]
    with torch.no_grad():
        for parameter in distribution.parameters():
            parameter.normal_()
    mean = reference.germinate(distribution.seed, distribution.mean_germinator, shape)
    rho = reference.germinate(distribution.seed, distribution.rho_germinator, shape) + distribution.rho_offset
    std = torch.tensor([reference.softplus(r) for r in rho.flatten().tolist()], dtype=torch.float64).reshape(shape)
    moments = distribution.moments()
    torch.testing.assert_close(moments.mean, mean)
    torch.testing.assert_close(moments.std, std)
    fixed = ks.FixedKernelSeed(distribution.seed.detach(), distribution.mean_germinator.detach(), shape)
    torch.testing.assert_close(fixed.moments().mean, mean)


RANKS = [
    (10, 0.25, 1, 3),  # 2.5 is rounded up
    (10, 0.25, 16, 10),  # the floor never exceeds C_f
    (512, 0.25, 16, 128),
    (64, 0.25, 16, 16),
    (40, 0.25, 16, 16),
    (100, 0.07, 1, 7),  # .07 * 100 is 7.000000000000001 in floating point
    (100, 0.29, 1, 29),  # .29 * 100 is 28.999999999999996
    (50, 0.14, 1, 7),
    (3, 1.0, 1, 3),
    (7, 1e-6, 1, 1),
    (1, 0.25, 1, 1),
]


def test_rank_of_a_seed():
    for c_f, delta, min_rank, c_pip in RANKS:
        for shape in ((c_f, 600), (600, c_f), (c_f, 600, 3, 3)):
            assert seed_rank(torch.Size(shape), delta, min_rank) == c_pip


@given(st.integers(1, 600), st.integers(1, 100))
@settings(quick, max_examples=150)
def test_hundredths_never_round_a_whole_channel_up(c_f, percent):
    exact = -(-percent * c_f // 100)  # in whole numbers
    assert seed_rank(torch.Size((c_f, 600)), percent / 100, 1) == exact


# --- init="model": the best approximation of what is given -----------------------------------------------------


@given(shapes, deltas)
@quick
def test_the_start_is_the_best_approximation_of_its_rank(shape, delta):
    weight = torch.randn(shape, dtype=torch.float64)
    distribution = germinated(weight, delta=delta, min_rank=1)
    rank = len(distribution.seed)
    tail = torch.linalg.svd(as_matrix(weight)).S[rank:].square().sum().sqrt()
    error = (distribution.moments().mean - weight).norm()
    assert abs(error - tail) < 1e-9 * weight.norm()


@given(shapes)
@quick
def test_factors_are_balanced_and_sorted(shape):
    weight = torch.randn(shape, dtype=torch.float64)
    distribution = germinated(weight, delta=0.6, min_rank=1)
    seed, germinator = distribution.seed.flatten(1), distribution.mean_germinator
    strength = torch.linalg.svd(as_matrix(weight)).S[: len(seed)]
    for gram in (seed @ seed.T, germinator.T @ germinator):
        torch.testing.assert_close(gram, torch.diag(strength), rtol=1e-6, atol=1e-6)


@given(shapes, st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]), st.booleans())
@example(torch.Size((1, 4)), torch.float32, False)
@example(torch.Size((4, 1)), torch.float32, False)
@quick
def test_delta_one_gives_the_weight_back_to_rounding(shape, dtype, fixed):
    weight = torch.randn(shape).to(dtype)
    mean = germinated(weight, delta=1.0, fixed=fixed).moments().mean
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(mean, weight, rtol=4 * eps, atol=16 * eps)


def test_delta_one_is_exact_at_any_scale():
    for scale in (1e-6, 1e6):
        weight = scale * torch.randn(4, 6, 3)
        mean = germinated(weight, delta=1.0).moments().mean
        torch.testing.assert_close(mean, weight, rtol=1e-5, atol=1e-6 * scale)


def test_a_weight_of_low_rank_is_kept_at_low_rank():
    weight = torch.randn(8, 3) @ torch.randn(3, 9)
    assert torch.linalg.matrix_rank(weight) == 3
    mean = germinated(weight, delta=0.375, min_rank=1).moments().mean
    torch.testing.assert_close(mean, weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "fixed", "rank"), [((5, 3), True, "zero"), ((4, 4, 3, 3), False, "zero"), ((3, 5, 2), False, "low")]
)
def test_directions_that_the_weight_does_not_use_can_be_learned(shape, fixed, rank):
    weight = torch.zeros(shape)
    if rank == "low":
        weight[0] = 1.0
    net = ks.germinate(Holder(weight), 1.0, fixed=fixed)
    torch.testing.assert_close(net.weights["weight"].moments().mean, weight)
    direction = torch.randn(shape)
    # No dead saddle: already the first step of plain gradient descent moves every row.
    (net.weights["weight"].moments().mean - direction).square().sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.01).step()
    moved = as_matrix((net.weights["weight"].moments().mean - weight).detach())
    assert (moved.norm(dim=1) > 1e-4).all()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        (net.weights["weight"].moments().mean - direction).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(net.weights["weight"].moments().mean, direction, rtol=0.05, atol=0.05)


# --- init="glorot": the paper's --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "delta"),
    [(nn.Linear(200, 60), 1.0), (nn.Conv2d(40, 50, 3), 0.25)],
    ids=["linear", "convolution"],
)
def test_glorot_keeps_the_variance_of_the_layers_own_initialisation(layer, delta):
    layer.reset_parameters()
    weight = layer.weight.detach()
    distribution = ks.germinate(layer, delta, min_rank=1, init="glorot", over="weights").weights["weight"]
    seed = distribution.seed.detach()
    taps = seed[0, 0].numel()
    bound = math.sqrt(6 / ((seed.shape[0] + seed.shape[1]) * taps))
    assert seed.abs().max() <= bound
    assert seed.square().mean().item() == pytest.approx(bound**2 / 3, rel=0.08)
    # A row of the mean is a sum of C_pip products, so its variance is known to about sqrt(2 / independent numbers):
    # C_f * C_pip germinators dominate the error, the smallest case here has 40 * 10 of them.
    mean = distribution.moments().mean.detach()
    assert mean.square().mean().item() == pytest.approx(weight.square().mean().item(), rel=0.2)
    averages = [
        ks.germinate(layer, delta, min_rank=1, init="glorot", over="weights")
        .weights["weight"]
        .moments()
        .mean.detach()
        .square()
        .mean()
        for _ in range(40)
    ]
    assert torch.stack(averages).mean().item() == pytest.approx(weight.square().mean().item(), rel=0.03)


def test_glorot_does_not_depend_on_the_values_given_but_on_their_scale():
    weight = torch.randn(6, 8)
    torch.manual_seed(1)
    one = germinated(weight, init="glorot", min_rank=1).moments().mean
    torch.manual_seed(1)
    other = germinated(weight.flip(0), init="glorot", min_rank=1).moments().mean
    torch.testing.assert_close(one, other)
    torch.manual_seed(1)
    torch.testing.assert_close(germinated(10 * weight, init="glorot", min_rank=1).moments().mean, 10 * one)


# --- rho -------------------------------------------------------------------------------------------------------


def test_every_rho_starts_at_the_offset():
    for net in (
        ks.germinate(nn.Conv2d(4, 6, 3), 0.5, min_rank=1, rho_offset=-2.5, over="weights"),
        ks.germinate(nn.Conv2d(4, 6, 3), 0.5, min_rank=1, rho_offset=-2.5, init="glorot", over="weights"),
        ks.bayesianize(nn.Conv2d(4, 6, 3), rho_offset=-2.5),
    ):
        std = net.weights["weight"].moments().std
        torch.testing.assert_close(std, torch.full_like(std, reference.softplus(-2.5)))


def test_defaults_are_what_works_best():
    net = ks.germinate(nn.Linear(40, 80), over="weights")
    assert len(net.weights["weight"].seed) == 16
    assert net.weights["weight"].moments().std.mean().item() == pytest.approx(reference.softplus(-5), rel=1e-5)


def test_one_step_tells_the_rhos_of_a_layer_apart():
    net = ks.germinate(nn.Linear(6, 4), min_rank=1, over="weights")
    draw = net.draw(generator())
    (draw(torch.randn(5, 6)).square().sum() + draw.kl(ks.ScaleMixture())).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    std = net.weights["weight"].moments().std
    assert std.unique().numel() > std.numel() / 2

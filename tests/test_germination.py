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
from kernelseed.core.weights import seed_rank

shapes = st.tuples(st.integers(1, 7), st.integers(1, 7), st.lists(st.integers(1, 3), max_size=3).map(tuple)).map(
    lambda s: torch.Size((s[0], s[1], *s[2]))
)
deltas = st.floats(0.01, 1.0)
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)

ORIENTED = {
    "linear_wide": nn.Linear(3, 5, bias=False),
    "linear_narrow": nn.Linear(5, 3, bias=False),
    "linear_square": nn.Linear(4, 4, bias=False),
    "conv1d_wide": nn.Conv1d(3, 5, 3),
    "conv1d_narrow": nn.Conv1d(5, 3, 3),
    "conv2d_wide": nn.Conv2d(2, 6, (3, 2)),
    "conv2d_narrow": nn.Conv2d(6, 2, (3, 2)),
    "conv2d_square": nn.Conv2d(4, 4, 3),
    "conv3d_wide": nn.Conv3d(2, 3, (1, 2, 3)),
    "conv3d_narrow": nn.Conv3d(3, 2, (1, 2, 3)),
}


class Holder(nn.Module):
    """A module with just one weight."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return (x * self.weight).sum()


def germinated(weight, **kwargs):
    return ks.germinate(Holder(weight), **kwargs).weights["weight"]


def as_matrix(weight):
    """(C_f, C_F * prod(k)): the smaller channel axis first, the first when they are equal."""
    return (weight if weight.shape[0] <= weight.shape[1] else weight.transpose(0, 1)).flatten(1).double()


# --- germination is the paper's 1x1 convolution ----------------------------------------------------------------


@pytest.mark.parametrize("layer", ORIENTED)
@pytest.mark.parametrize("delta", [1.0, 0.6, 0.25])
def test_it_is_a_1x1_convolution_of_the_seed(layer, delta):
    shape = ORIENTED[layer].weight.shape
    distribution = ks.germinate(ORIENTED[layer].double(), delta, min_rank=1).weights["weight"]
    with torch.no_grad():
        distribution.seed.normal_()
        distribution.mean_germinator.normal_()
        distribution.rho_germinator.normal_()
    gaussian = distribution()
    mean = reference.germinate(distribution.seed, distribution.mean_germinator, shape)
    rho = reference.germinate(distribution.seed, distribution.rho_germinator, shape) + distribution.rho_offset
    std = torch.tensor([reference.softplus(r) for r in rho.flatten().tolist()], dtype=torch.float64).reshape(shape)
    torch.testing.assert_close(gaussian.mean, mean)
    torch.testing.assert_close(gaussian.std, std)
    fixed = ks.FixedKernelSeed(distribution.seed.detach(), distribution.mean_germinator.detach(), shape)()
    torch.testing.assert_close(fixed.mean, mean)
    assert fixed.std is None


@given(shapes, deltas, st.integers(1, 20))
@example(torch.Size((1, 1)), 1.0, 1)
@quick
def test_shapes_of_seed_and_germinators(shape, delta, min_rank):
    distribution = germinated(torch.randn(shape), delta=delta, min_rank=min_rank)
    c_f, c_big = min(shape[:2]), max(shape[:2])
    c_pip = min(c_f, max(min_rank, math.ceil(delta * c_f)))
    assert distribution.seed.shape == (c_pip, c_big, *shape[2:])
    assert distribution.mean_germinator.shape == distribution.rho_germinator.shape == (c_f, c_pip)
    assert sorted(dict(distribution.named_parameters())) == ["mean_germinator", "rho_germinator", "rho_offset", "seed"]
    gaussian = distribution()
    assert gaussian.mean.shape == gaussian.std.shape == shape
    mean = reference.germinate(distribution.seed, distribution.mean_germinator, shape)
    torch.testing.assert_close(gaussian.mean, mean)


@pytest.mark.parametrize(
    ("c_f", "delta", "min_rank", "c_pip"),
    [
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
    ],
)
def test_rank_of_a_seed(c_f, delta, min_rank, c_pip):
    for shape in ((c_f, 600), (600, c_f), (c_f, 600, 3, 3)):
        assert seed_rank(torch.Size(shape), delta, min_rank) == c_pip


@given(st.integers(1, 600), st.integers(1, 100))
@settings(quick, max_examples=300)
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
    error = (distribution().mean - weight).norm()
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (6, 2, 3, 3), (2, 6, 3), (3, 2, 1, 2, 3), (1, 4), (4, 1)])
def test_delta_one_gives_the_weight_back_to_rounding(shape, dtype):
    weight = torch.randn(shape).to(dtype)
    for fixed in (False, True):
        mean = germinated(weight, delta=1.0, fixed=fixed)().mean
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(mean, weight, rtol=4 * eps, atol=16 * eps)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
def test_delta_one_is_exact_at_any_scale(scale):
    weight = scale * torch.randn(4, 6, 3)
    mean = germinated(weight, delta=1.0)().mean
    torch.testing.assert_close(mean, weight, rtol=1e-5, atol=1e-6 * scale)


def test_a_weight_of_low_rank_is_kept_at_low_rank():
    weight = torch.randn(8, 3) @ torch.randn(3, 9)
    assert torch.linalg.matrix_rank(weight) == 3
    mean = germinated(weight, delta=0.375, min_rank=1)().mean
    torch.testing.assert_close(mean, weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5, 2), (4, 4, 3, 3)])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("rank", ["zero", "low"])
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
    "layer",
    [nn.Linear(60, 200), nn.Linear(200, 60), nn.Conv2d(40, 50, 3), nn.Conv1d(50, 40, 5)],
    ids=["wide", "narrow", "conv2d", "conv1d"],
)
@pytest.mark.parametrize("delta", [1.0, 0.25])
def test_glorot_keeps_the_variance_of_the_layers_own_initialisation(layer, delta):
    layer.reset_parameters()
    weight = layer.weight.detach()
    distribution = ks.germinate(layer, delta, min_rank=1, init="glorot").weights["weight"]
    seed = distribution.seed.detach()
    taps = seed[0, 0].numel()
    bound = math.sqrt(6 / ((seed.shape[0] + seed.shape[1]) * taps))
    assert seed.abs().max() <= bound
    assert seed.square().mean().item() == pytest.approx(bound**2 / 3, rel=0.08)
    # A row of the mean is a sum of C_pip products, so its variance is known to about sqrt(2 / independent numbers):
    # C_f * C_pip germinators dominate the error, the smallest case here has 40 * 10 of them.
    mean = distribution().mean.detach()
    assert mean.square().mean().item() == pytest.approx(weight.square().mean().item(), rel=0.2)
    averages = [
        ks.germinate(layer, delta, min_rank=1, init="glorot").weights["weight"].moments().mean.detach().square().mean()
        for _ in range(40)
    ]
    assert torch.stack(averages).mean().item() == pytest.approx(weight.square().mean().item(), rel=0.03)


def test_glorot_does_not_depend_on_the_values_given_but_on_their_scale():
    weight = torch.randn(6, 8)
    torch.manual_seed(1)
    one = germinated(weight, init="glorot", min_rank=1)().mean
    torch.manual_seed(1)
    other = germinated(weight.flip(0), init="glorot", min_rank=1)().mean
    torch.testing.assert_close(one, other)
    torch.manual_seed(1)
    torch.testing.assert_close(germinated(10 * weight, init="glorot", min_rank=1)().mean, 10 * one)


# --- rho -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["model", "glorot"])
@pytest.mark.parametrize("rho_offset", [-5.0, -2.5, 0.0])
def test_every_rho_starts_at_the_offset(init, rho_offset):
    for net in (
        ks.germinate(nn.Conv2d(4, 6, 3), 0.5, min_rank=1, init=init, rho_offset=rho_offset),
        ks.bayesianize(nn.Conv2d(4, 6, 3), rho_offset=rho_offset),
    ):
        std = net.weights["weight"].moments().std
        torch.testing.assert_close(std, torch.full_like(std, reference.softplus(rho_offset)))


def test_defaults_are_what_works_best():
    net = ks.germinate(nn.Linear(40, 80))
    assert len(net.weights["weight"].seed) == 16
    assert net.weights["weight"].moments().std.mean().item() == pytest.approx(reference.softplus(-5), rel=1e-5)


def test_one_step_tells_the_rhos_of_a_layer_apart():
    net = ks.germinate(nn.Linear(6, 4), min_rank=1)
    draw = net.draw(generator())
    (draw(torch.randn(5, 6)).square().sum() + draw.kl(ks.ScaleMixture())).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    std = net.weights["weight"].moments().std
    assert std.unique().numel() > std.numel() / 2

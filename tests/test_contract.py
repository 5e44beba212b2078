"""The contract of a weight distribution, checked for every kind of parameter that a module may have.

Failure budget: the statistical tests below bound each statistic so that, were the seeds not fixed, a correct library
would fail one of them less than once in 1e6 runs of the whole suite (Bonferroni over all statistics).
"""

import copy
import functools
import pickle

import pytest
import reference
import scipy.stats
import torch
from kinds import DISTRIBUTIONS, KINDS, generator, trained
from torch import nn
from torch.func import vmap

import kernelseed as ks
from kernelseed.core.network import call_with
from kernelseed.fast import kernels

PRIOR = ks.ScaleMixture()
RANDOM = [name for name in DISTRIBUTIONS if name != "fixed"]
# Four statistics for each pair (Kolmogorov-Smirnov, two correlations, KL), and two for each of some 5,000 weights.
BUDGET = 1e-6 / (4 * len(RANDOM) * len(KINDS) + 2 * 5_000)
DRAWS = 100

every = pytest.mark.parametrize(("distribution", "kind"), [(d, k) for d in DISTRIBUTIONS for k in KINDS])
every_random = pytest.mark.parametrize(("distribution", "kind"), [(d, k) for d in RANDOM for k in KINDS])
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(distribution, kind, dtype=torch.float32):
    """The net as if it were trained, and inputs for it."""
    net = DISTRIBUTIONS[distribution](KINDS[kind].make().to(dtype))
    return trained(net), KINDS[kind].inputs(dtype)


def flat(tensors):
    return torch.cat([t.detach().double().flatten() for t in tensors])


def moments(net):
    """All means and deviations in one row each, in float64."""
    gaussians = [w() for _, w in net.weights.items()]
    return flat(g.mean for g in gaussians), flat(g.std for g in gaussians)


def values(draw):
    return flat(sample.value for sample in draw.samples.values())


def scalar(output):
    """A number that depends on every output, and on each in its own way."""
    return (output * torch.linspace(-1, 2, output.numel(), dtype=output.dtype).reshape(output.shape)).sin().sum()


def loss_of(net, x, seed):
    draw = net.draw(generator(seed))
    return scalar(draw(*x)) + 1e-2 * draw.kl(PRIOR)


def gradients(loss, net):
    """By name, zeros for what the loss does not reach."""
    names, parameters = zip(*net.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for n, p, g in zip(names, parameters, found, strict=True)}


# --- what it is ----------------------------------------------------------------------------------------------


@every
def test_each_weight_has_a_gaussian_in_its_own_shape(distribution, kind):
    model = KINDS[kind].make()
    shapes = {name: p.shape for name, p in model.named_parameters() if p.dim() >= 2}
    net = DISTRIBUTIONS[distribution](model)
    assert {name: w.shape for name, w in net.weights.items()} == shapes
    for name, shape in shapes.items():
        gaussian = net.weights[name]()
        assert isinstance(gaussian, ks.Gaussian)
        assert gaussian.mean.shape == shape
        if distribution == "fixed":
            assert gaussian.std is None
        else:
            assert gaussian.std.shape == shape
            assert (gaussian.std > 0).all()


@every
def test_a_draw_has_every_weight_once_and_outlives_later_draws(distribution, kind):
    net, x = build(distribution, kind)
    draw = net.draw(generator())
    assert list(draw.samples) == list(net.weights)
    assert draw.num_weights == sum(w.num_weights for _, w in net.weights.items()) * (distribution != "fixed")
    before, output, kl = values(draw), draw(*x), draw.kl(PRIOR)
    net.draw()(*x)
    net.mean()(*x)
    assert torch.equal(values(draw), before)
    assert torch.equal(draw(*x), output)
    assert torch.equal(draw.kl(PRIOR), kl)


@every
def test_the_same_generator_gives_the_same_draw_and_another_a_different_one(distribution, kind):
    net, _ = build(distribution, kind)
    first, again, other = (values(net.draw(generator(seed))) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (distribution == "fixed")
    torch.manual_seed(5)
    first = values(net.draw())
    assert torch.equal(first, values(net.draw())) == (distribution == "fixed")
    torch.manual_seed(5)
    assert torch.equal(first, values(net.draw()))


# --- how it is distributed -----------------------------------------------------------------------------------


@functools.cache
def many(distribution, kind):
    """Means and deviations, and of many draws the standardised values and the KLs."""
    net, _ = build(distribution, kind)
    mean, std = moments(net)
    torch.manual_seed(8)
    draws = [net.draw() for _ in range(DRAWS)]
    noise = (torch.stack([values(draw) for draw in draws]) - mean) / std
    return mean.tolist(), std.tolist(), noise, torch.stack([draw.kl(PRIOR).detach() for draw in draws]).double()


@every_random
def test_standardised_draws_are_standard_normal(distribution, kind):
    _, _, noise, _ = many(distribution, kind)
    assert noise.numel() > 1000
    assert scipy.stats.kstest(noise.flatten().numpy(), "norm").pvalue > BUDGET


@every_random
def test_each_weight_has_the_mean_and_the_deviation_it_says(distribution, kind):
    _, _, noise, _ = many(distribution, kind)
    bound = scipy.stats.norm.isf(BUDGET / 2)
    assert (noise.mean(0).abs() < bound / DRAWS**0.5).all()
    squares = noise.square().sum(0)
    low, high = scipy.stats.chi2.ppf(BUDGET / 2, DRAWS), scipy.stats.chi2.isf(BUDGET / 2, DRAWS)
    assert ((squares > low) & (squares < high)).all()


@every_random
def test_weights_and_draws_are_independent(distribution, kind):
    _, _, noise, _ = many(distribution, kind)
    bound = scipy.stats.norm.isf(BUDGET / 2)
    for product in (noise[:, 1:] * noise[:, :-1], noise[1:] * noise[:-1]):
        assert abs(product.mean()) < bound / product.numel() ** 0.5


@every_random
def test_the_kl_of_many_draws_averages_to_the_integral(distribution, kind):
    mean, std, _, estimates = many(distribution, kind)
    exact = reference.kl_by_quadrature(mean, std, PRIOR)
    error = estimates.std() / DRAWS**0.5
    assert abs(estimates.mean() - exact) < scipy.stats.t.isf(BUDGET / 2, DRAWS - 1) * error
    assert error < 0.05 * exact  # else the line above would say little


@every_random
def test_the_kl_of_a_draw_is_its_definition(distribution, kind):
    net, _ = build(distribution, kind, torch.float64)
    mean, std = moments(net)
    for prior in (PRIOR, ks.ScaleMixture.blundell()):
        draw = net.draw()
        expected = reference.kl_at(values(draw).tolist(), mean.tolist(), std.tolist(), prior)
        assert draw.kl(prior).item() == pytest.approx(expected, rel=1e-10)
        assert draw.kl(prior).shape == ()


@every_random
def test_a_gaussian_priors_kl_is_the_closed_form_for_any_draw(distribution, kind):
    net, _ = build(distribution, kind, torch.float64)
    mean, std = moments(net)
    prior = ks.priors.Gaussian(0.3, mean=0.1)
    q, p = (
        torch.distributions.Normal(mean, std),
        torch.distributions.Normal(*torch.tensor([0.1, 0.3], dtype=torch.float64)),
    )
    expected = torch.distributions.kl_divergence(q, p).sum()
    for draw in (net.draw(), net.draw(), net.mean()):
        torch.testing.assert_close(draw.kl(prior), expected, rtol=1e-12, atol=0)


@every_kind
def test_a_fixed_net_has_no_kl_and_no_noise(kind):
    net, x = build("fixed", kind)
    draw = net.draw()
    assert draw.kl(PRIOR).item() == draw.kl(ks.priors.Gaussian()).item() == 0
    assert draw.num_weights == 0
    assert torch.equal(values(draw), values(net.mean()))
    assert torch.equal(draw(*x), net.mean()(*x))


# --- how it is learned ---------------------------------------------------------------------------------------


@every
def test_gradients_are_those_of_finite_differences(distribution, kind):
    net, x = build(distribution, kind, torch.float64)

    def outputs(*_):
        draw = net.draw(generator())
        kls = () if distribution == "fixed" else (draw.kl(PRIOR), draw.kl(ks.priors.Gaussian(0.5)))
        return scalar(draw(*x)), *kls

    assert torch.autograd.gradcheck(outputs, tuple(net.parameters()), fast_mode=True)


@every
def test_two_draws_before_one_backward(distribution, kind):
    net, x = build(distribution, kind, torch.float64)
    one, two = (gradients(loss_of(net, x, seed), net) for seed in (0, 1))
    first, second = loss_of(net, x, 0), loss_of(net, x, 1)
    both = gradients(first + second, net)
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, one[name] + two[name])
    assert all(gradient.abs().sum() > 0 for name, gradient in both.items() if name.startswith("weights."))


# --- how it is kept ------------------------------------------------------------------------------------------


@every
def test_the_mean_draw_runs_like_the_collapsed_net(distribution, kind):
    net, x = build(distribution, kind)
    plain = ks.collapse(net)
    assert type(plain) is type(KINDS[kind].make())
    torch.testing.assert_close(net.mean()(*x), plain(*x))
    draw = net.draw()
    torch.testing.assert_close(draw(*x), ks.collapse(net, draw)(*x))


@every
def test_copies_are_equal_and_independent(distribution, kind):
    net, x = build(distribution, kind)
    loss_of(net, x, 0).backward()  # a draw that is still around must not stand in the way
    before = net.draw(generator(6))(*x)
    loaded = DISTRIBUTIONS[distribution](KINDS[kind].make())
    assert not torch.equal(net.mean()(*x), loaded.mean()(*x))
    loaded.load_state_dict(net.state_dict())
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), loaded):
        assert torch.equal(net.mean()(*x), twin.mean()(*x))
        assert torch.equal(before, twin.draw(generator(6))(*x))
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1.0)
        assert not torch.equal(before, twin.draw(generator(6))(*x))
    assert torch.equal(before, net.draw(generator(6))(*x))


@every
def test_a_state_dict_has_readable_keys_and_only_what_is_learned(distribution, kind):
    net, _ = build(distribution, kind)
    leaves = {
        "mean_field": {"mean", "rho"},
        "fixed": {"seed", "mean_germinator"},
    }.get(distribution, {"seed", "mean_germinator", "rho_germinator", "rho_offset"})
    model = KINDS[kind].make()
    weights = {name for name, p in model.named_parameters() if p.dim() >= 2}
    expected = {f"weights.{name}.{leaf}" for name in weights for leaf in leaves}
    keys = set(net.state_dict())
    assert {key for key in keys if key.startswith("weights.")} == expected
    assert not any(key == f"skeleton.{name}" for key in keys for name in weights)
    assert {name for name, _ in net.named_parameters()} <= keys


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_dtype(distribution, kind, dtype):
    net, _ = build(distribution, kind)
    exact = values(net.mean())
    net = net.to(dtype)
    draw = net.draw()
    for _, distribution_ in net.weights.items():
        gaussian = distribution_()
        assert gaussian.mean.dtype == dtype
        if distribution != "fixed":
            assert gaussian.std.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert gaussian.std.isfinite().all()
            assert (gaussian.std > 0).all()
    assert all(sample.value.dtype == dtype for sample in draw.samples.values())
    assert values(draw).isfinite().all()
    error = {torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float64: 1e-6}[dtype]
    torch.testing.assert_close(values(net.mean()), exact, rtol=error, atol=error)
    kl = draw.kl(PRIOR)
    assert kl.dtype == (torch.float64 if dtype == torch.float64 and distribution != "fixed" else torch.float32)
    assert kl.isfinite()
    output = draw(*KINDS[kind].inputs(dtype))
    assert output.dtype == dtype
    assert output.isfinite().all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("lstm", "gru")])  # PyTorch can't batch these
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's own, about its batching rules
def test_stacked_draws_run_under_vmap(distribution, kind):
    net, x = build(distribution, kind)
    draws = [net.draw() for _ in range(3)]
    stacked = {name: torch.stack([draw.weights[name] for draw in draws]) for name in draws[0].weights}
    outputs = vmap(lambda weights: call_with(net.skeleton, weights, *x))(stacked)
    torch.testing.assert_close(outputs, torch.stack([draw(*x) for draw in draws]))


COMPILED = [("mean_field", "conv2d"), ("seed_half", "linear_wide"), ("seed_half", "attention"), ("fixed", "tied")]


@pytest.mark.parametrize(("distribution", "kind"), COMPILED)
def test_a_training_step_compiles_in_one_graph(distribution, kind, monkeypatch):
    # Compiled code makes its noise by torch's generator, so the eager step has to as well to be compared.
    monkeypatch.setattr(kernels, "library", lambda: None)
    torch._dynamo.reset()
    net, x = build(distribution, kind)

    def step(*x):
        draw = net.draw()
        return scalar(draw(*x)) + 1e-2 * draw.kl(PRIOR)

    torch.manual_seed(7)
    expected = gradients(step(*x), net)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.manual_seed(7)
    loss = compiled(*x)
    found = gradients(loss, net)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_new_distribution_is_a_new_class_and_no_new_layer():
    class Constant(ks.WeightDistribution):
        def __init__(self, weight):
            super().__init__()
            self.shape = weight.shape
            self.level = nn.Parameter(weight.mean())

        def forward(self):
            return ks.Gaussian(self.level.expand(self.shape), torch.full(self.shape, 0.5))

        @classmethod
        def blank(cls, shape, rank):
            return cls(torch.empty(shape))

    skeleton = ks.bayesianize(nn.Linear(3, 2)).skeleton
    net = ks.BayesianModule(skeleton, {"weight": Constant(torch.ones(2, 3))})
    draw = net.draw()
    assert draw(torch.ones(1, 3)).shape == (1, 2)
    expected = reference.kl_at(values(draw).tolist(), [1.0] * 6, [0.5] * 6, PRIOR)
    assert draw.kl(PRIOR).item() == pytest.approx(expected, rel=1e-5)

"""A posterior as the next prior: exact KLs, a memory as small as the network, and Bayes' rule in two steps."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import kernelseed as ks
from kernelseed.core.distributions import Gaussian
from kernelseed.errors import ArgumentError

KINDS = {
    "bnn": lambda model: ks.bayesianize(model, where=lambda name, parameter: True),
    "ksn": lambda model: ks.germinate(model, delta=0.5, min_rank=4, over="weights"),
    "factors": lambda model: ks.germinate(model, min_rank=4, over="factors"),
    "channels": lambda model: ks.germinate(model, min_rank=4, over="channels"),
}


def small_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 12), nn.ReLU(), nn.Linear(12, 3)).to(dtype)


@torch.no_grad()
def moved(net, size=0.2):
    """Another posterior of the same kind."""
    other = copy.deepcopy(net)
    for parameter in other.weights.parameters():
        parameter.add_(size * torch.randn_like(parameter))
    return other


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_posterior_has_no_kl_from_itself(kind, dtype):
    net = KINDS[kind](small_model(dtype))
    kl = net.draw().kl(net.as_prior())
    kl.backward()
    assert kl.item() == 0
    assert all(parameter.grad.abs().max() < 1e-5 for parameter in net.weights.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_later_training_does_not_change_the_prior(kind):
    net = KINDS[kind](small_model())
    prior, other = net.as_prior(), moved(net)
    before = other.draw().kl(prior)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    assert other.draw().kl(prior) == before > 1
    assert not any(parameter.requires_grad for parameter in prior.weights.parameters())


@pytest.mark.parametrize("kind", ["bnn", "ksn"])
def test_the_kl_is_that_of_quadrature(kind):
    """Gauss-Hermite: the integrand is a polynomial of second degree, so a few nodes are exact."""
    before = KINDS[kind](small_model(torch.float64))
    after = moved(before)
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    total = 0.0
    for name in after.weights:
        q, p = after.weights[name].moments(), before.weights[name].moments()
        for node, weight in zip(nodes, weights / math.sqrt(2 * math.pi), strict=True):
            w = q.mean + q.std * node
            log_ratio = torch.distributions.Normal(q.mean, q.std).log_prob(w)
            log_ratio = log_ratio - torch.distributions.Normal(p.mean, p.std).log_prob(w)
            total += weight * log_ratio.sum().item()
    assert after.draw().kl(before.as_prior()).item() == pytest.approx(total, rel=1e-9)


def test_the_kl_of_factors_is_the_sum_over_both():
    before = KINDS["factors"](small_model(torch.float64))
    after = moved(before)
    expected = 0.0
    for name in after.weights:
        q, p = after.weights[name].decoded(), before.weights[name].decoded()
        for mine, theirs in ((q.germinator, p.germinator), (q.seed, p.seed)):
            normals = (torch.distributions.Normal(g.mean, g.std) for g in (mine.moments(), theirs.moments()))
            expected += torch.distributions.kl_divergence(*normals).sum().item()
    for prior in (before.as_prior(), before.as_prior().decoded()):
        assert after.draw().kl(prior).item() == pytest.approx(expected, rel=1e-9)
    assert all(type(factor) is Gaussian for each in prior.values() for factor in each.gaussians)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prior_of", [lambda net: net.as_prior(), lambda net: ks.priors.Gaussian(0.7, 0.1)])
def test_values_and_gradients_of_the_fast_kl_are_those_of_autograd_in_double_precision(kind, prior_of):
    net = KINDS[kind](small_model())
    after = moved(net)
    fast = after.draw().kl(prior_of(net))
    fast.backward()
    exact_after, exact_net = copy.deepcopy(after).double(), copy.deepcopy(net).double()
    exact_after.zero_grad()
    exact = exact_after.draw().kl(prior_of(exact_net))
    exact.backward()
    assert fast.item() == pytest.approx(exact.item(), rel=1e-5)
    for mine, theirs in zip(after.weights.parameters(), exact_after.weights.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5 * theirs.grad.abs().max())


def test_a_tiny_standard_deviation_keeps_its_kl_and_its_slope():
    """exp(-40) is far from zero, and its square is no float."""
    net = ks.bayesianize(nn.Linear(3, 2), rho_offset=-40.0)
    prior = net.as_prior()
    with torch.no_grad():
        net.weights["weight"].rho.add_(1.0)
    kl = net.draw().kl(prior)
    kl.backward()
    assert kl.item() == pytest.approx(6 * (-1 + 0.5 * math.exp(2) - 0.5), rel=1e-4)
    torch.testing.assert_close(net.weights["weight"].rho.grad, torch.full((2, 3), math.exp(2) - 1), rtol=1e-4, atol=0)


def test_the_prior_of_seeds_is_as_small_as_the_seeds():
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Conv2d(64, 128, 3))
    net = ks.germinate(model, delta=0.25, min_rank=1, over="weights")
    prior = net.as_prior()
    stored = sum(parameter.numel() for parameter in net.weights.parameters())
    assert prior.num_parameters == stored
    assert prior.num_parameters < 0.32 * sum(parameter.numel() for parameter in model.parameters())


def test_priors_by_name():
    net = KINDS["bnn"](small_model())
    wide, narrow = ks.priors.Gaussian(1.0), ks.priors.Gaussian(0.1)
    each = {name: wide if name.startswith("0.") else narrow for name in net.weights}
    draw = net.draw()
    expected = sum(draw.samples[name].kl(prior) for name, prior in each.items())
    torch.testing.assert_close(draw.kl(each), expected)
    terms = ks.ELBO(100, each, kl_weight=1.0)(draw, torch.zeros(4, 7), torch.tensor([0, 1, 2, 0]))
    torch.testing.assert_close(terms.kl, expected.detach())


def test_a_prior_of_another_network_is_refused():
    net, other = KINDS["bnn"](small_model()), ks.bayesianize(nn.Linear(7, 3))
    with pytest.raises(
        ks.KernelseedError, match=r"the prior has no weight '0.weight'; it has weight: take the prior of"
    ):
        net.draw().kl(other.as_prior())
    with pytest.raises(ks.KernelseedError, match="Gaussians on its factors and the weight does not; both must be"):
        ks.germinate(small_model(), min_rank=4, over="weights").draw().kl(KINDS["factors"](small_model()).as_prior())


NOISE = 0.3


def bayes_regression(x, y, precision, weighted):
    """The exact posterior of a linear model with independent weights, from a Gaussian prior; see Bishop (3.50)."""
    precision = precision + x.square().sum(0) / NOISE**2
    weighted = weighted + x.T @ y / NOISE**2
    return precision, weighted


def fit(net, x, y, prior):
    """Minimise the exact negative evidence lower bound; its expected log-likelihood is written out."""
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        q = net.weights["weight"].moments()
        expected = (x @ q.mean[0] - y).square().sum() + (x.square() @ q.std[0].square()).sum()
        value = expected / (2 * NOISE**2) + net.draw().kl(prior)
        value.backward()
        return value

    optimizer.step(loss)


@pytest.mark.parametrize("kind", ["bnn", "ksn"])
def test_two_tasks_in_turn_are_both_at_once_where_bayes_rule_is_exact(kind):
    """Linear regression with orthogonal features: the true posterior has independent weights, so mean-field is exact.

    A kernel seed of one row has one rho for all weights, so it is exact where the features are of one length.
    """
    torch.manual_seed(0)
    truth = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)
    designs = [torch.linalg.qr(torch.randn(9, 4, dtype=torch.float64)).Q * 3 for _ in range(2)]
    lengths = [0.2, 1.0, 2.0, 0.5] if kind == "bnn" else [2.0]
    designs[1] = designs[1] * torch.tensor(lengths, dtype=torch.float64)
    tasks = [(x, x @ truth + NOISE * torch.randn(9, dtype=torch.float64)) for x in designs]

    model = nn.Linear(4, 1, bias=False).double()
    net = ks.bayesianize(model) if kind == "bnn" else ks.germinate(model, over="weights")
    fit(net, *tasks[0], ks.priors.Gaussian(1.0))
    fit(net, *tasks[1], net.as_prior())

    at_once = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for x, y in tasks:
        at_once = bayes_regression(x, y, *at_once)
    precision, weighted = at_once
    found = net.weights["weight"].moments()
    torch.testing.assert_close(found.mean[0], weighted / precision, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.std[0], precision.rsqrt(), rtol=1e-4, atol=0)


def test_a_prior_that_is_learned_has_its_gradient():
    gradients = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        spread = nn.Parameter(torch.tensor(0.3, dtype=dtype))
        prior = {"weight": Gaussian(torch.zeros(3, 4, dtype=dtype), spread.exp().expand(3, 4), None)}
        draw = ks.bayesianize(nn.Linear(4, 3, bias=False).to(dtype)).draw()
        gradients.append(torch.autograd.grad(draw.kl(prior), spread)[0].item())
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-4)
    assert 0 < gradients[1] < 12  # 12 weights, each narrower than its prior and near its mean


class Stated(ks.WeightDistribution):
    """A distribution of one's own, which states a mean and a standard deviation and no logarithm."""

    def __init__(self, weight):
        super().__init__()
        self.shape, self.mean_of = weight.shape, nn.Parameter(weight.clone())

    def moments(self):
        return ks.Gaussian(self.mean_of, torch.full(self.shape, 0.1))

    def spec(self):
        return {"shape": list(self.shape)}

    @classmethod
    def from_spec(cls, spec):
        return cls(torch.empty(spec["shape"]))


def test_distributions_of_ones_own_have_a_kl_without_a_graph():
    net = ks.convert(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), Stated)
    prior = net.as_prior()
    with torch.no_grad():
        assert net.draw().kl(prior) == pytest.approx(0.0, abs=1e-4)
        for sample in net.posterior().draw().samples.values():
            assert sample.source.std is not None


def test_a_prior_of_another_structure_is_refused():
    layer = nn.Linear(8, 8, bias=False)
    net = ks.germinate(layer)
    with pytest.raises(ArgumentError, match="the prior has a Gaussian for each weight, and the weight has them on its"):
        net.draw().kl(ks.bayesianize(layer).as_prior())
    with pytest.raises(ArgumentError, match="the prior has Gaussians on its factors and the weight does not"):
        ks.bayesianize(layer).draw().kl(net.as_prior())
    for rank in (1, 3):
        smaller = ks.germinate(layer, ranks={"weight": rank})
        with pytest.raises(ArgumentError, match=rf"has a seed of rank {rank}, and its prior, .* one of rank 8"):
            smaller.draw().kl(net.as_prior())
    with pytest.raises(ArgumentError, match="prior has none for weight; it is one for all weights or has one for each"):
        net.draw().kl({"bias": ks.priors.Gaussian(1.0)})

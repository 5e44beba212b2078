"""Priors and the Gaussian value: densities and divergences against formulas in plain Python."""

import math
import pickle

import pytest
import reference
import scipy.integrate
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import generator
from torch import nn

import kernelseed as ks

quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)
MIXTURES = {
    "paper": ks.ScaleMixture(),
    "blundell": ks.ScaleMixture.blundell(),
    "other": ks.ScaleMixture(0.9, 0.1, 3.0),
}
every_mixture = pytest.mark.parametrize("prior", MIXTURES.values(), ids=MIXTURES)
reals = st.floats(-50, 50)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_the_printed_values_are_the_default():
    prior = ks.ScaleMixture()
    assert prior.pi == 0.25
    assert -math.log(prior.sigma1**2) == 0
    assert -math.log(prior.sigma2**2) == pytest.approx(6)
    assert prior.sigma2 == pytest.approx(0.0498, abs=5e-5)


def test_blundells_values_are_for_the_deviations():
    prior = ks.ScaleMixture.blundell()
    assert (prior.pi, -math.log(prior.sigma1)) == (0.25, 0)
    assert -math.log(prior.sigma2) == pytest.approx(6)


@every_mixture
def test_log_density_is_its_definition(prior):
    w = torch.cat([torch.linspace(-30, 30, 401), torch.logspace(-8, 1, 50)]).double()
    expected = [reference.log_scale_mixture(v, prior.pi, prior.sigma1, prior.sigma2) for v in w.tolist()]
    torch.testing.assert_close(prior.log_prob(w), torch.tensor(expected, dtype=torch.float64))
    single = prior.log_prob(w.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, torch.tensor(expected), rtol=1e-5, atol=1e-5)


@every_mixture
def test_densities_integrate_to_one(prior):
    w = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    assert torch.trapezoid(prior.log_prob(w).exp(), w).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_have_single_precision_densities(dtype):
    w = torch.linspace(-3, 3, 50).to(dtype)
    for prior in (*MIXTURES.values(), ks.priors.Gaussian(0.1)):
        log_prob = prior.log_prob(w)
        assert log_prob.dtype == torch.float32
        torch.testing.assert_close(log_prob, prior.log_prob(w.double()).float())


@given(reals, st.floats(0.01, 10), st.floats(-3, 3))
@quick
def test_gaussian_log_density(w, std, mean):
    found = ks.priors.Gaussian(std, mean).log_prob(torch.tensor(w, dtype=torch.float64)).item()
    assert found == pytest.approx(reference.log_normal(w, mean, std), rel=1e-9, abs=1e-9)


@given(st.floats(-3, 3), st.floats(1e-3, 3))
@settings(quick, max_examples=25)
def test_the_references_quadrature_agrees_with_an_adaptive_one(mean, std):
    prior = ks.ScaleMixture()

    def integrand(w):
        difference = reference.log_normal(w, mean, std) - reference.log_scale_mixture(w, 0.25, 1.0, math.exp(-3))
        return math.exp(reference.log_normal(w, mean, std)) * difference

    exact = scipy.integrate.quad(integrand, mean - 9 * std, mean + 9 * std, points=[0.0], limit=400)[0]
    assert reference.kl_by_quadrature([mean], [std], prior) == pytest.approx(exact, rel=1e-5, abs=1e-6)


@every_mixture
def test_a_mixture_of_equal_parts_is_a_gaussian(prior):
    same = ks.ScaleMixture(prior.pi, 0.3, 0.3)
    w = torch.linspace(-2, 2, 41)
    torch.testing.assert_close(same.log_prob(w), ks.priors.Gaussian(0.3).log_prob(w))


def test_the_kl_is_a_sum_over_weights_and_layers():
    net = ks.bayesianize(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    prior = ks.priors.Gaussian(0.2)
    parts = [prior.kl(w().at_mean()) for _, w in net.weights.items()]
    torch.testing.assert_close(net.draw().kl(prior), sum(parts))
    wide = ks.bayesianize(nn.Linear(3, 8, bias=False))
    with torch.no_grad():
        wide.weights["weight"].mean.fill_(0.5)
    narrow = ks.bayesianize(nn.Linear(3, 4, bias=False))
    with torch.no_grad():
        narrow.weights["weight"].mean.fill_(0.5)
    torch.testing.assert_close(wide.draw().kl(prior), 2 * narrow.draw().kl(prior))


def test_the_kl_of_the_prior_itself_is_zero():
    gaussian = ks.Gaussian(torch.full((5,), 0.3), torch.full((5,), 0.7))
    assert ks.priors.Gaussian(0.7, 0.3).kl(gaussian.sample()).item() == pytest.approx(0, abs=1e-6)


def test_the_kl_at_the_mean_is_the_estimate_without_noise():
    gaussian = ks.Gaussian(torch.tensor([0.1, -0.4]), torch.tensor([0.2, 0.03]))
    expected = reference.kl_at([0.1, -0.4], [0.1, -0.4], [0.2, 0.03], ks.ScaleMixture())
    assert ks.ScaleMixture().kl(gaussian.at_mean()).item() == pytest.approx(expected, rel=1e-5)


def test_log_q_is_exact_although_the_deviation_is_far_below_the_means_rounding():
    gaussian = ks.Gaussian(torch.full((1000,), 100.0), torch.full((1000,), 1e-6))
    sample = gaussian.sample(generator())
    noise = torch.randn(1000, generator=generator())
    expected = -math.log(1e-6) - 0.5 * noise.square() - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(sample.log_prob(), expected)


def test_priors_are_values():
    assert ks.ScaleMixture() == ks.ScaleMixture(0.25, 1.0, math.exp(-3))
    for prior in (ks.ScaleMixture.blundell(), ks.priors.Gaussian(0.5)):
        assert pickle.loads(pickle.dumps(prior)) == prior


# --- numbers at the edge ---------------------------------------------------------------------------------------

RHOS = [-100.0, -60.0, -30.0, -17.0, -16.0, -15.0, -1.0, 0.0, 1.0, 15.0, 20.0, 25.0, 60.0, 100.0]


@pytest.mark.parametrize("rho", RHOS)
def test_sigma_is_softplus_and_its_logarithm_has_the_right_value_and_slope(rho):
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-14)):
        leaf = torch.tensor([rho], dtype=dtype, requires_grad=True)
        gaussian = ks.Gaussian.from_rho(torch.zeros(1, dtype=dtype), leaf)
        exact = reference.softplus(rho)
        floor = torch.finfo(dtype).tiny  # a normal number: subnormal ones may be flushed to zero
        assert gaussian.std.item() >= floor
        assert gaussian.std.item() == pytest.approx(max(exact, floor), rel=tolerance, abs=0)
        log_std = -gaussian.at_mean().log_prob() - 0.5 * math.log(2 * math.pi)
        # exp(-100) is no normal float32, but its logarithm is a number like any other.
        log_exact = rho if rho < -40 else math.log(exact)
        assert log_std.item() == pytest.approx(log_exact, rel=10 * tolerance, abs=10 * tolerance)
        (slope,) = torch.autograd.grad(log_std.sum(), leaf)
        sigmoid = 1 / (1 + math.exp(-rho))
        assert slope.item() == pytest.approx(sigmoid / exact if rho > -40 else 1.0, rel=100 * tolerance, abs=0)


def extreme(method, rho, dtype):
    """A net with every rho at this value."""
    model = nn.Linear(3, 4).to(dtype)
    if method == "mean_field":
        return ks.bayesianize(model, rho_offset=rho)
    return ks.germinate(model, 0.5, min_rank=1, rho_offset=rho)


@pytest.mark.parametrize("method", ["mean_field", "seed"])
@pytest.mark.parametrize("rho", [-100.0, -20.0, 0.0, 20.0, 100.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rho_gives_nan_or_a_variance_of_zero(method, rho, dtype):
    for prior in (ks.ScaleMixture(), ks.ScaleMixture.blundell(), ks.priors.Gaussian()):
        net = extreme(method, rho, dtype)
        assert (net.weights["weight"].moments().std > 0).all()
        draw = net.draw()
        assert draw.weights["weight"].isfinite().all()
        kl = draw.kl(prior)
        assert kl.isfinite()
        loss = draw(torch.ones(2, 3, dtype=dtype)).float().square().mean() + kl / 1000
        loss.backward()
        assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
        assert all(p.grad is not None for p in net.weights.parameters())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prior", [ks.ScaleMixture(), ks.priors.Gaussian()], ids=["mixture", "gaussian"])
def test_the_kl_still_pulls_a_vanished_variance_up(dtype, prior):
    # d KL / d rho = -d log sigma / d rho + ... = -1 for each of twelve weights.
    net = extreme("mean_field", -100.0, dtype)
    net.draw().kl(prior).backward()
    torch.testing.assert_close(net.weights["weight"].rho.grad, torch.full((4, 3), -1.0, dtype=dtype))
    net = extreme("seed", -100.0, dtype)
    net.draw().kl(prior).backward()
    torch.testing.assert_close(net.weights["weight"].rho_offset.grad, torch.tensor([-12.0], dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tiny_deviation_has_its_own_kl_not_that_of_a_floor(dtype):
    at = {rho: extreme("mean_field", rho, dtype).mean().kl(ks.ScaleMixture()).item() for rho in (-90.0, -100.0)}
    zero_mean = {}
    for rho in at:
        net = extreme("mean_field", rho, dtype)
        with torch.no_grad():
            net.weights["weight"].mean.zero_()
        zero_mean[rho] = net.mean().kl(ks.ScaleMixture()).item()
    assert zero_mean[-100.0] - zero_mean[-90.0] == pytest.approx(120, rel=1e-4)

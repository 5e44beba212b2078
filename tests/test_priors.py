"""Priors and the Gaussian value: densities and divergences against formulas in plain Python."""

import math
import pickle

import pytest
import reference
import scipy.integrate
import torch
from kinds import generator
from torch import nn

import kernelseed as ks

MIXTURES = {"paper": ks.ScaleMixture(), "blundell": ks.ScaleMixture.blundell()}


def test_the_papers_values_are_for_variances_and_blundells_for_deviations():
    paper, blundell = MIXTURES.values()
    assert (paper.pi, paper.sigma1, blundell.pi, blundell.sigma1) == (0.25, 1, 0.25, 1)
    assert -math.log(paper.sigma2**2) == pytest.approx(6)
    assert -math.log(blundell.sigma2) == pytest.approx(6)


@pytest.mark.parametrize("prior", MIXTURES.values(), ids=MIXTURES)
def test_the_mixtures_log_density_is_its_definition(prior):
    w = torch.cat([torch.linspace(-30, 30, 401), torch.logspace(-8, 1, 50)]).double()
    expected = [reference.log_scale_mixture(v, prior.pi, prior.sigma1, prior.sigma2) for v in w.tolist()]
    torch.testing.assert_close(prior.log_prob(w), torch.tensor(expected, dtype=torch.float64))
    single = prior.log_prob(w.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_the_gaussians_log_density_is_its_definition():
    w = torch.linspace(-5, 5, 11, dtype=torch.float64)
    expected = torch.tensor([reference.log_normal(v, -0.7, 0.2) for v in w.tolist()], dtype=torch.float64)
    torch.testing.assert_close(ks.priors.Gaussian(0.2, mean=-0.7).log_prob(w), expected)


@pytest.mark.parametrize("prior", [ks.ScaleMixture(), ks.priors.Gaussian(0.1)], ids=["mixture", "gaussian"])
def test_half_precision_weights_have_single_precision_densities(prior):
    w = torch.linspace(-3, 3, 50).half()
    log_prob = prior.log_prob(w)
    assert log_prob.dtype == torch.float32
    torch.testing.assert_close(log_prob, prior.log_prob(w.double()).float())


@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.1), (-1.5, 0.02), (0.0, 2.0)])
def test_the_average_kl_of_samples_is_the_integral(mean, std):
    prior = ks.ScaleMixture()

    def integrand(w):
        log_q = reference.log_normal(w, mean, std)
        return math.exp(log_q) * (log_q - reference.log_scale_mixture(w, prior.pi, prior.sigma1, prior.sigma2))

    exact = scipy.integrate.quad(integrand, mean - 9 * std, mean + 9 * std, points=[0.0], limit=400)[0]
    n = 100_000
    sample = ks.Gaussian(torch.full((n,), mean), torch.full((n,), std)).sample(ks.Noise.new(generator()))
    terms = sample.log_prob() - prior.log_prob(sample.value)
    assert abs(prior.kl(sample).item() / n - exact) < 5 * terms.std().item() / math.sqrt(n)


def test_the_kl_is_a_sum_over_weights_and_layers():
    net, prior = ks.bayesianize(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))), ks.priors.Gaussian(0.2)
    torch.testing.assert_close(net.draw().kl(prior), sum(prior.kl(w.mean()) for w in net.weights.values()))
    same = ks.Gaussian(torch.full((10,), 0.5), torch.full((10,), 0.1))
    one = ks.Gaussian(same.mean[:1], same.std[:1])
    torch.testing.assert_close(prior.kl(same.at_mean()), 10 * prior.kl(one.at_mean()))


def test_the_kl_at_the_mean_is_the_estimate_without_noise():
    gaussian = ks.Gaussian(torch.tensor([0.1, -0.4]), torch.tensor([0.2, 0.03]))
    expected = reference.kl_at([0.1, -0.4], [0.1, -0.4], [0.2, 0.03], ks.ScaleMixture())
    assert ks.ScaleMixture().kl(gaussian.at_mean()).item() == pytest.approx(expected, rel=1e-5)


def test_log_q_is_exact_although_the_deviation_is_far_below_the_means_rounding():
    noise = ks.Noise.new(generator())
    sample = ks.Gaussian(torch.full((1000,), 100.0), torch.full((1000,), 1e-6)).sample(noise)
    expected = -math.log(1e-6) - 0.5 * noise.normal((1000,)).square() - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(sample.log_prob(), expected)


def test_priors_are_values():
    assert ks.ScaleMixture() == ks.ScaleMixture(0.25, 1.0, math.exp(-3))
    for prior in (ks.ScaleMixture.blundell(), ks.priors.Gaussian(0.5)):
        assert pickle.loads(pickle.dumps(prior)) == prior


# --- numbers at the edge ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [-100.0, -36.5, -15.5, 0.0, 25.0, 100.0])
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
    return ks.germinate(model, 0.5, min_rank=1, rho_offset=rho, over="weights")


every_method = pytest.mark.parametrize("method", ["mean_field", "seed"])
# float32 takes the kernels, float16 the plain way with parameters of few bits.
two_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


@every_method
@two_precisions
def test_no_rho_gives_nan_or_a_variance_of_zero(method, dtype):
    for rho in (-100.0, 100.0):
        for prior in (ks.ScaleMixture.blundell(), ks.priors.Gaussian()):
            net = extreme(method, rho, dtype)
            assert (net.weights["weight"].moments().std > 0).all()
            draw = net.draw()
            assert draw.weights["weight"].isfinite().all()
            kl = draw.kl(prior)
            assert kl.isfinite()
            (draw(torch.ones(2, 3, dtype=dtype)).float().square().mean() + kl / 1000).backward()
            assert all(p.grad.isfinite().all() for p in net.parameters())


@two_precisions
@pytest.mark.parametrize("prior", [ks.ScaleMixture(), ks.priors.Gaussian()], ids=["mixture", "gaussian"])
def test_the_kl_still_pulls_a_vanished_variance_up(dtype, prior):
    # d KL / d rho = -d log sigma / d rho + ... = -1 for each of twelve weights.
    net = extreme("mean_field", -100.0, dtype)
    net.draw().kl(prior).backward()
    torch.testing.assert_close(net.weights["weight"].rho.grad, torch.full((4, 3), -1.0, dtype=dtype))
    net = extreme("seed", -100.0, dtype)
    net.draw().kl(prior).backward()
    torch.testing.assert_close(net.weights["weight"].rho_offset.grad, torch.tensor([-12.0], dtype=dtype))


def test_a_tiny_deviation_has_its_own_kl_not_that_of_a_floor():
    kl = {}
    for rho in (-90.0, -100.0):
        net = extreme("mean_field", rho, torch.float32)
        with torch.no_grad():
            net.weights["weight"].mu.zero_()
        kl[rho] = net.mean().kl(ks.ScaleMixture()).item()
    assert kl[-100.0] - kl[-90.0] == pytest.approx(120, rel=1e-4)

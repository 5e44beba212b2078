"""The ELBO, its schedules and its likelihoods."""

import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from kinds import generator, mlp
from torch import nn

import kernelseed as ks
from kernelseed.core.schedules import Moment

X, Y = torch.randn(12, 3, generator=generator()), torch.arange(12) % 4


def at(step=0, num_data=100, num_weights=1000):
    return Moment(step, num_data, num_weights)


# --- the evidence lower bound ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [ks.ScaleMixture(), ks.ScaleMixture.blundell(), ks.priors.Gaussian(0.3)])
@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
def test_the_loss_is_nll_plus_weighted_kl_over_n(prior, temperature):
    net = ks.germinate(mlp(3, 5, 4))
    draw = net.draw()
    terms = ks.ELBO(60, prior, ks.schedules.constant(temperature))(draw, X, Y)
    torch.testing.assert_close(terms.nll, F.cross_entropy(draw(X), Y).detach())
    torch.testing.assert_close(terms.kl, draw.kl(prior).detach())
    assert terms.kl_weight == temperature
    torch.testing.assert_close(terms.loss.detach(), terms.nll + temperature * terms.kl / 60)
    assert terms.loss.requires_grad
    assert not terms.nll.requires_grad
    assert not terms.kl.requires_grad


def test_defaults_are_the_papers_prior_the_exact_bound_and_classes():
    net = ks.germinate(mlp(3, 5, 4))
    draw = net.draw()
    terms = ks.ELBO(num_data=60)(draw, X, Y)
    expected = F.cross_entropy(draw(X), Y) + draw.kl(ks.ScaleMixture()) / 60
    torch.testing.assert_close(terms.loss, expected)


def test_gradients_of_the_loss_are_those_of_its_formula():
    net = ks.germinate(mlp(3, 5, 4))
    found = torch.autograd.grad(ks.ELBO(60)(net.draw(generator()), X, Y).loss, tuple(net.parameters()))
    draw = net.draw(generator())
    loss = F.cross_entropy(draw(X), Y) + draw.kl(ks.ScaleMixture()) / 60
    for a, b in zip(found, torch.autograd.grad(loss, tuple(net.parameters())), strict=True):
        torch.testing.assert_close(a, b)


def test_the_bound_is_tight_at_the_exact_posterior_and_nowhere_else():
    # One weight w ~ N(0, 1), targets y = w x + N(0, s^2): posterior and evidence are known.
    s, x = 0.5, torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)
    y = torch.tensor([[0.7], [1.1], [-0.4]], dtype=torch.float64)
    precision = 1 + (x.square().sum() / s**2).item()
    mean, std = ((x * y).sum() / s**2).item() / precision, precision**-0.5
    covariance = x @ x.T + s**2 * torch.eye(3, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(3).double(), covariance).log_prob(y[:, 0]).item()
    net = ks.bayesianize(nn.Linear(1, 1, bias=False).double())
    loss = ks.ELBO(3, ks.priors.Gaussian(1.0), likelihood=ks.likelihoods.Gaussian(noise=s))

    def expected_loss(mean, std):
        with torch.no_grad():
            net.weights["weight"].mean.fill_(mean)
            net.weights["weight"].rho.fill_(math.log(math.expm1(std)))
            # The likelihood is quadratic in w, so two points at one deviation integrate it exactly.
            nll = 0.0
            for sign in (-1, 1):
                weights = {"weight": torch.full((1, 1), mean + sign * std, dtype=torch.float64)}
                nll += 0.5 * loss.likelihood.nll(torch.func.functional_call(net.skeleton, weights, (x,)), y).item()
            return nll + loss(net.mean(), x, y).kl.item() / 3

    assert 3 * expected_loss(mean, std) == pytest.approx(-evidence, abs=1e-9)
    for worse in ((mean + 0.1, std), (mean, 1.2 * std), (mean, 0.8 * std)):
        assert 3 * expected_loss(*worse) > -evidence + 1e-3


def test_a_fixed_nets_loss_is_its_nll():
    net = ks.germinate(mlp(3, 5, 4), fixed=True)
    terms = ks.ELBO(60)(net.draw(), X, Y)
    assert terms.kl.item() == 0
    torch.testing.assert_close(terms.loss.detach(), terms.nll)


def test_a_batch_may_be_a_tuple_or_a_mapping():
    net = ks.germinate(nn.Bilinear(3, 3, 4)).eval()
    draw = net.mean()
    expected = ks.ELBO(60)(draw, (X, X), Y).loss
    torch.testing.assert_close(ks.ELBO(60)(draw, [X, X], Y).loss, expected)
    torch.testing.assert_close(ks.ELBO(60)(draw, {"input1": X, "input2": X}, Y).loss, expected)


def test_an_empty_batch_has_a_finite_loss_and_finite_gradients():
    net = ks.germinate(mlp(3, 5, 4))
    terms = ks.ELBO(60)(net.draw(), X[:0], Y[:0])
    assert terms.nll.item() == 0
    terms.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
    regression = ks.ELBO(60, likelihood=ks.likelihoods.Gaussian())
    assert regression(net.draw(), X[:0], torch.empty(0, 4)).loss.isfinite()


def test_one_class_costs_nothing():
    net = ks.germinate(mlp(3, 5, 1))
    terms = ks.ELBO(60)(net.draw(), X, torch.zeros(12, dtype=torch.long))
    assert terms.nll.item() == 0
    assert terms.loss.isfinite()


def test_the_loss_of_a_batch_estimates_that_of_the_data():
    # Batches of equal size average to the whole; the KL is divided by N in one place.
    draw = ks.germinate(mlp(3, 5, 4)).draw()
    loss = ks.ELBO(12)
    whole = loss(draw, X, Y).loss
    parts = torch.stack([loss(draw, X[i : i + 3], Y[i : i + 3]).loss for i in range(0, 12, 3)])
    torch.testing.assert_close(parts.mean(), whole)


def test_half_precision_logits_have_a_single_precision_loss():
    net = ks.germinate(mlp(3, 5, 4).bfloat16())
    terms = ks.ELBO(60)(net.draw(), X.bfloat16(), Y)
    assert {terms.loss.dtype, terms.nll.dtype, terms.kl.dtype} == {torch.float32}


@pytest.mark.parametrize(
    "schedule",
    [
        ks.schedules.uniform(),
        ks.schedules.constant(0.3),
        ks.schedules.automatic(),
        ks.schedules.blundell(7),
        ks.schedules.warmup(10, ks.schedules.blundell(3)),
    ],
)
def test_an_objective_can_be_pickled(schedule):
    loss = ks.ELBO(60, ks.ScaleMixture.blundell(), schedule, ks.likelihoods.Gaussian())
    twin = pickle.loads(pickle.dumps(loss))
    draw = ks.germinate(mlp(3, 5, 4)).draw()
    y = torch.randn(12, 4)
    assert torch.equal(loss(draw, X, y, step=3).loss, twin(draw, X, y, step=3).loss)


# --- schedules -------------------------------------------------------------------------------------------------


def test_uniform_is_one_over_m_of_each_batch():
    assert [ks.schedules.uniform()(at(step)) for step in (None, 0, 7)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("m", [1, 2, 3, 10, 60])
def test_blundell_is_its_formula(m):
    schedule = ks.schedules.blundell(m)
    for i in range(1, m + 1):
        exact = 2 ** (m - i) / (2**m - 1)  # whole numbers until the last division
        assert schedule(at(i - 1)) / m == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("m", [1, 2, 5, 100, 1_000, 10_000])
def test_blundell_sums_to_one_over_an_epoch_of_any_length(m):
    schedule = ks.schedules.blundell(m)
    weights = [schedule(at(step)) / m for step in range(m)]
    assert sum(weights) == pytest.approx(1, rel=1e-12)
    assert all(math.isfinite(w) and 0 <= w <= 1 for w in weights)
    assert schedule(at(m)) == schedule(at(0))  # and again in the next epoch
    assert schedule(at(5 * m + m - 1)) == schedule(at(m - 1))


def test_constant():
    assert ks.schedules.constant(0.125)(at(None)) == 0.125
    assert ks.schedules.constant(0)(at(3)) == 0


@pytest.mark.parametrize(
    ("num_data", "num_weights", "expected"), [(60, 120, 0.5), (60, 60, 1.0), (60, 6, 1.0), (60, 0, 1.0)]
)
def test_automatic(num_data, num_weights, expected):
    assert ks.schedules.automatic()(at(None, num_data, num_weights)) == expected


def test_automatic_counts_the_weights_of_the_draw():
    net = ks.germinate(mlp(3, 5, 4), where=lambda name, p: name == "0.weight")
    assert ks.ELBO(3, kl_weight=ks.schedules.automatic())(net.draw(), X, Y).kl_weight == 3 / 15


def test_warmup_is_linear_and_then_out_of_the_way():
    schedule = ks.schedules.warmup(4)
    assert [schedule(at(step)) for step in range(7)] == [0, 0.25, 0.5, 0.75, 1, 1, 1]
    then = ks.schedules.warmup(4, ks.schedules.constant(0.1))
    assert [then(at(step)) for step in (0, 2, 4, 9)] == pytest.approx([0, 0.05, 0.1, 0.1])


def test_the_step_reaches_the_schedule():
    draw = ks.germinate(mlp(3, 5, 4)).draw()
    loss = ks.ELBO(60, kl_weight=ks.schedules.warmup(10))
    assert loss(draw, X, Y, step=5).kl_weight == 0.5
    assert loss(draw, X, Y, step=5).kl_weight == 0.5  # no state


# --- likelihoods -----------------------------------------------------------------------------------------------


def test_categorical_with_more_axes():
    logits, labels = torch.randn(2, 3, 4, 5), torch.randint(3, (2, 4, 5))
    torch.testing.assert_close(ks.likelihoods.Categorical()(logits, labels), F.cross_entropy(logits, labels))


def test_read_finds_the_tensor():
    likelihood = ks.likelihoods.Categorical(read=lambda output: output["logits"])
    logits = torch.randn(12, 4)
    torch.testing.assert_close(likelihood.nll({"logits": logits}, Y), F.cross_entropy(logits, Y))


@pytest.mark.parametrize("noise", [0.1, 1, "learned", "output"])
def test_gaussian_noise_in_all_three_forms(noise):
    likelihood = ks.likelihoods.Gaussian(noise=noise)
    output, target = torch.randn(6, 4), torch.randn(6, 2 if noise == "output" else 4)
    mean, std = output, torch.tensor(1.0 if noise == "learned" else noise) if noise != "output" else None
    if noise == "output":
        mean, std = output[:, :2], F.softplus(output[:, 2:])
    expected = -torch.distributions.Normal(mean, std).log_prob(target).sum(1).mean()
    torch.testing.assert_close(likelihood.nll(output, target), expected)
    assert len(list(likelihood.parameters())) == (noise == "learned")


def test_learned_noise_starts_at_one_and_is_given_to_the_optimizer():
    loss = ks.ELBO(60, likelihood=ks.likelihoods.Gaussian())
    (rho,) = loss.parameters()
    assert F.softplus(rho).item() == pytest.approx(1)
    assert list(loss.state_dict()) == ["likelihood.rho"]


@pytest.mark.parametrize("true", [0.05, 2.0])
def test_learned_noise_recovers_the_true_noise(true):
    x = torch.linspace(-1, 1, 2000)[:, None]
    y = 3 * x + true * torch.randn(2000, 1)
    net = ks.bayesianize(nn.Linear(1, 1))
    loss = ks.ELBO(2000, likelihood=ks.likelihoods.Gaussian())
    optimizer = torch.optim.Adam([*net.parameters(), *loss.parameters()], lr=0.05)
    for _ in range(250):
        optimizer.zero_grad()
        loss(net.draw(), x, y).loss.backward()
        optimizer.step()
    # The deviation of 2000 numbers is known to 1.6 %.
    assert F.softplus(loss.likelihood.rho).item() == pytest.approx(true, rel=0.07)
    p = ks.predict(net, x, likelihood=loss.likelihood)
    assert p.aleatoric.sqrt().mean().item() == pytest.approx(true, rel=0.07)


def test_predicted_noise_recovers_noise_that_depends_on_the_input():
    x = torch.rand(2000, 1)
    y = torch.where(x < 0.5, 0.1, 1.0) * torch.randn(2000, 1)
    net = ks.bayesianize(mlp(1, 16, 2))
    loss = ks.ELBO(2000, kl_weight=ks.schedules.constant(0.1), likelihood=ks.likelihoods.Gaussian(noise="output"))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        loss(net.draw(), x, y).loss.backward()
        optimizer.step()
    p = ks.predict(net, torch.tensor([[0.1], [0.9]]), likelihood=loss.likelihood)
    quiet, loud = p.aleatoric.sqrt()[:, 0].tolist()
    assert quiet < 0.3
    assert 0.6 < loud < 1.5

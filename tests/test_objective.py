"""The ELBO, its schedules and its likelihoods."""

import dataclasses
import math
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from kinds import generator, mlp
from torch import nn

import kernelseed as ks
from kernelseed.core import distributions
from kernelseed.core.schedules import Moment
from kernelseed.errors import ArgumentError, ArgumentTypeError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports are not ours
    import transformers

X, Y = torch.randn(12, 3, generator=generator()), torch.arange(12) % 4
Categorical, Gaussian = ks.likelihoods.Categorical, ks.likelihoods.Gaussian


def at(step=0, num_data=100, num_weights=1000):
    return Moment(step, num_data, num_weights)


def same(one, two):
    """Terms with the same numbers."""
    for field in dataclasses.fields(one):
        torch.testing.assert_close(getattr(one, field.name), getattr(two, field.name))


# --- the evidence lower bound ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("prior", "kl_weight"), [(ks.ScaleMixture(), 0.1), (ks.priors.Gaussian(0.3), 1)], ids=str)
def test_the_loss_is_nll_plus_weighted_kl_over_n_in_value_and_gradient(prior, kl_weight):
    net = ks.germinate(mlp(3, 5, 4), over="weights")
    draw = net.draw(generator())
    nll, kl = F.cross_entropy(draw(X), Y), draw.kl(prior)
    expected = nll + kl_weight * kl / 60
    terms = ks.ELBO(60, prior, kl_weight)(net.draw(generator()), X, Y)
    same(terms, ks.Terms(expected, nll.detach(), kl.detach(), float(kl_weight)))
    assert not terms.nll.requires_grad
    assert not terms.kl.requires_grad
    found, wanted = (torch.autograd.grad(loss, tuple(net.parameters())) for loss in (terms.loss, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kl_weight", [0.0, 0.1])
def test_a_number_is_a_constant_kl_weight(kl_weight):
    loss = ks.ELBO(100, kl_weight=kl_weight)
    draw = ks.germinate(mlp(3, 5, 4), over="weights").draw()
    terms = loss(draw, X, Y)
    assert [terms.kl_weight, loss(draw, X, Y, step=7).kl_weight] == [kl_weight, kl_weight]
    torch.testing.assert_close(terms.loss.detach(), terms.nll + kl_weight * terms.kl / 100)


def test_defaults_are_the_same_in_python_methods_and_command():
    draw = ks.germinate(mlp(3, 5, 4), over="weights").draw()  # of 35 weights
    terms = ks.ELBO(num_data=7)(draw, X, Y)
    same(terms, ks.ELBO(7, ks.ScaleMixture(), ks.schedules.settled(), Categorical())(draw, X, Y))
    assert terms.kl_weight == 0.05 * 7 / 35
    for name in ("ksn", "bnn"):
        method = ks.methods.make(name)
        assert method.prior_value() == ks.ScaleMixture()
        assert method.schedule()(Moment(0, 7, 35)) == 0.05 * 7 / 35
    assert ks.predict.__wrapped__.__defaults__ == (ks.training.Config().samples,) == (10,)


def test_the_bound_is_tight_at_the_exact_posterior_and_nowhere_else():
    # One weight w ~ N(0, 1), targets y = w x + N(0, s^2): posterior and evidence are known.
    s, x = 0.5, torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)
    y = torch.tensor([[0.7], [1.1], [-0.4]], dtype=torch.float64)
    precision = 1 + (x.square().sum() / s**2).item()
    mean, std = ((x * y).sum() / s**2).item() / precision, precision**-0.5
    covariance = x @ x.T + s**2 * torch.eye(3, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(3).double(), covariance).log_prob(y[:, 0]).item()
    net = ks.bayesianize(nn.Linear(1, 1, bias=False).double())
    loss = ks.ELBO(3, ks.priors.Gaussian(1.0), likelihood=Gaussian(noise=s))

    def expected_loss(mean, std):
        with torch.no_grad():
            net.weights["weight"].mu.fill_(mean)
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
    terms = ks.ELBO(60)(ks.germinate(mlp(3, 5, 4), fixed=True).draw(), X, Y)
    assert terms.kl.item() == 0
    torch.testing.assert_close(terms.loss.detach(), terms.nll)


def test_the_loss_of_a_batch_estimates_that_of_the_data():
    # Batches of equal size average to the whole; the KL is divided by N in one place.
    draw, loss = ks.germinate(mlp(3, 5, 4), over="weights").draw(), ks.ELBO(12)
    parts = torch.stack([loss(draw, x, y).loss for x, y in zip(X.split(3), Y.split(3), strict=True)])
    torch.testing.assert_close(parts.mean(), loss(draw, X, Y).loss)


@pytest.mark.parametrize("x", [(X, X), [X, X], {"input1": X, "input2": X}], ids=["tuple", "list", "mapping"])
def test_the_loss_may_be_given_inputs_outputs_or_an_nll(x):
    draw, loss = (
        ks.germinate(nn.Bilinear(3, 3, 4), over="weights").draw(),
        ks.ELBO(60, kl_weight=ks.schedules.warmup(10, 1)),
    )
    terms, output = loss(draw, x, Y, step=5), draw(X, X)
    same(terms, loss.of(output, Y, draw, step=5))
    same(terms, loss.with_nll(F.cross_entropy(output, Y), draw, step=5))
    assert terms.kl_weight == 0.5


def test_the_loss_of_a_transformer_is_its_own():
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3
    )
    draw = ks.germinate(
        transformers.BertForSequenceClassification(config).eval(), 0.5, min_rank=2, over="weights"
    ).draw()
    tokens, labels = torch.randint(9, (4, 5)), torch.tensor([0, 1, 2, 0])
    loss = ks.ELBO(40, likelihood=Categorical(read=lambda output: output.logits))
    same(loss.with_nll(draw(tokens, labels=labels).loss, draw), loss(draw, {"input_ids": tokens}, labels))


def test_the_losses_of_several_heads_are_added_and_the_kl_counts_once():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.kind, self.size = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(5, 1)

        def forward(self, x):
            h = torch.relu(self.body(x))
            return self.kind(h), self.size(h)

    draw, size = ks.germinate(Heads(), over="weights").draw(), torch.randn(12, 1)
    kind_output, size_output = draw(X)
    kind_nll, size_nll = Categorical().nll(kind_output, Y), Gaussian(0.3).nll(size_output, size)
    terms = ks.ELBO(60, kl_weight=0.5).with_nll(kind_nll + size_nll, draw)
    expected = F.cross_entropy(kind_output, Y) - torch.distributions.Normal(size_output, 0.3).log_prob(size).mean()
    torch.testing.assert_close(terms.nll, expected.detach())
    torch.testing.assert_close(terms.loss, expected + 0.5 * draw.kl(ks.ScaleMixture()) / 60)


def test_half_precision_logits_have_a_single_precision_loss():
    terms = ks.ELBO(60)(ks.germinate(mlp(3, 5, 4).bfloat16(), over="weights").draw(), X.bfloat16(), Y)
    assert {terms.loss.dtype, terms.nll.dtype, terms.kl.dtype} == {torch.float32}


def test_a_step_off_the_cpu_waits_for_nothing():
    # A meta tensor has no values: whoever asked for one, as checks of values must, would get an error.
    net = ks.germinate(mlp(3, 5, 4), over="weights").to("meta")
    loss = ks.ELBO(60, likelihood=Categorical(weight=torch.ones(4))).to("meta")
    terms = loss(net.draw(), X.to("meta"), Y.to("meta"))
    terms.loss.backward()
    assert terms.loss.is_meta
    assert Gaussian().to("meta").nll(X.to("meta"), X.to("meta")).is_meta


def test_an_objective_can_be_pickled():
    schedule = ks.schedules.warmup(10, ks.schedules.blundell(3))
    loss = ks.ELBO(60, ks.ScaleMixture.blundell(), schedule, Gaussian())
    draw, y = ks.germinate(mlp(3, 5, 4), over="weights").draw(), torch.randn(12, 4)
    same(pickle.loads(pickle.dumps(loss))(draw, X, y, step=4), loss(draw, X, y, step=4))


# --- schedules -------------------------------------------------------------------------------------------------


def test_uniform_is_one_over_m_of_each_batch():
    assert [ks.schedules.uniform()(at(step)) for step in (None, 0, 7)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("m", [1, 60])
def test_blundell_is_its_formula(m):
    schedule = ks.schedules.blundell(m)
    for i in range(1, m + 1):
        exact = 2 ** (m - i) / (2**m - 1)  # whole numbers until the last division
        assert schedule(at(i - 1)) / m == pytest.approx(exact, rel=1e-12)


def test_blundell_sums_to_one_over_a_long_epoch_and_starts_again_in_the_next():
    schedule = ks.schedules.blundell(3000)
    assert sum(schedule(at(step)) / 3000 for step in range(3000)) == pytest.approx(1, rel=1e-12)
    assert [schedule(at(3000)), schedule(at(17_999))] == [schedule(at(0)), schedule(at(2999))]


def test_blundell_may_learn_the_length_of_an_epoch_from_the_moment():
    assert ks.schedules.blundell()(Moment(1, 100, num_batches=3)) == ks.schedules.blundell(3)(at(1))


def test_automatic_and_settled_are_shares_of_data_over_weights_and_at_most_one():
    assert [ks.schedules.automatic()(at(None, 60, n)) for n in (120, 60, 6, 0)] == [0.5, 1.0, 1.0, 1.0]
    assert [ks.schedules.settled()(at(None, 60, n)) for n in (120, 6, 3, 0)] == [0.025, 0.5, 1.0, 1.0]


def test_settled_counts_the_bayesian_weights_of_the_draw():
    net = ks.germinate(mlp(3, 5, 4), where=lambda name, p: name == "0.weight", over="weights")
    assert ks.ELBO(3)(net.draw(), X, Y).kl_weight == 0.05 * 3 / 15


def test_warmup_is_linear_and_then_out_of_the_way():
    schedule = ks.schedules.warmup(4, ks.schedules.uniform())
    assert [schedule(at(step)) for step in range(7)] == [0, 0.25, 0.5, 0.75, 1, 1, 1]
    for then in (ks.schedules.constant(0.1), 0.1, 0):
        schedule, top = ks.schedules.warmup(4, then), 0.1 if then else 0
        assert [schedule(at(step)) for step in (0, 2, 4, 9)] == pytest.approx([0, top / 2, top, top])


def test_scaled_is_a_factor():
    then = ks.schedules.warmup(4, 0.5)
    assert [ks.schedules.scaled(0.1, then)(at(step)) for step in (0, 2, 9)] == pytest.approx([0, 0.025, 0.05])


def test_noise_that_has_settled_costs_what_settled_allows():
    n, num_data, curvature, noise = 7, 50, 3.0, 0.015
    weight = ks.schedules.settled(noise)(Moment(None, num_data, n))
    std = torch.full((n,), 0.1, dtype=torch.float64, requires_grad=True)
    mean = torch.zeros(n, dtype=torch.float64)
    for _ in range(200):  # sigma settles where the expected loss of a quadratic, and the KL, balance
        cost = 0.5 * curvature * std.square().sum()
        posterior, prior = (distributions.Gaussian(mean, each) for each in (std, torch.full_like(mean, 1e4)))
        kl = prior.kl(posterior.at_mean())
        (slope,) = torch.autograd.grad(cost + weight * kl / num_data, std)
        std = (std - 0.3 / curvature * slope).detach().requires_grad_()
    assert cost.item() == pytest.approx(noise, rel=1e-4)


# --- likelihoods -----------------------------------------------------------------------------------------------


WEIGHT = torch.tensor([0.5, 2.0, 1.0])


@pytest.mark.parametrize(
    ("axes", "ignore_index", "weight"), [((), -100, None), ((), 1, WEIGHT), ((4, 5), -100, WEIGHT), ((4, 5), 1, None)]
)
def test_classes_cost_what_torchs_cross_entropy_says(axes, ignore_index, weight):
    logits, labels = torch.randn(9, 3, *axes), torch.randint(3, (9, *axes))
    labels[2:4] = ignore_index
    expected = F.cross_entropy(logits, labels, weight, ignore_index=ignore_index)
    torch.testing.assert_close(Categorical(weight=weight, ignore_index=ignore_index)(logits, labels), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_may_be_small_integers(dtype):
    logits, labels = torch.randn(3, 200), torch.tensor([156, 156, 3])  # 156 is -100 in eight bits
    torch.testing.assert_close(Categorical().nll(logits, labels.to(dtype)), F.cross_entropy(logits, labels))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_class_weights_have_any_precision(dtype):
    logits, weight = torch.randn(12, 4, dtype=dtype), torch.tensor([1.0, 2.0, 0.5, 0.0])
    expected = F.cross_entropy(logits.double(), Y, weight.double()).item()
    for likelihood in (Categorical(weight=weight), Categorical(weight=weight).to(dtype)):
        assert likelihood.nll(logits, Y).item() == pytest.approx(expected, rel=1e-6)


def test_nothing_that_counts_costs_nothing():
    net = ks.germinate(mlp(3, 5, 4), over="weights")
    for likelihood in (Categorical(), Categorical(weight=torch.ones(4))):
        for x, y in ((X[:0], Y[:0]), (X, torch.full_like(Y, -100))):
            terms = ks.ELBO(60, likelihood=likelihood)(net.draw(), x, y)
            assert terms.nll.item() == 0
            assert all(g.isfinite().all() for g in torch.autograd.grad(terms.loss, tuple(net.weights.parameters())))
    assert Gaussian().nll(X[:0], X[:0]).item() == 0


def test_each_example_can_have_a_loss_of_its_own_under_vmap():
    logits, losses = torch.randn(12, 4), []
    for likelihood in (Categorical(), Categorical(weight=torch.ones(4))):
        losses.append(torch.func.vmap(likelihood.nll)(logits[:, None], Y[:, None]))
    torch.testing.assert_close(losses, 2 * [F.cross_entropy(logits, Y, reduction="none")])


@pytest.mark.parametrize("noise", [0.1, "learned", "output"])
def test_gaussian_noise_in_all_three_forms(noise):
    likelihood = Gaussian(noise=noise)
    output, target = torch.randn(6, 4), torch.randn(6, 2 if noise == "output" else 4)
    mean, std = output, torch.tensor(1.0 if noise == "learned" else noise) if noise != "output" else None
    if noise == "output":
        mean, std = output[:, :2], F.softplus(output[:, 2:])
    expected = -torch.distributions.Normal(mean, std).log_prob(target).sum(1).mean()
    torch.testing.assert_close(likelihood.nll(output, target), expected)
    assert len(list(likelihood.parameters())) == (noise == "learned")


@pytest.mark.parametrize("true", [0.05, 2.0])
def test_learned_noise_settles_at_the_deviation_of_the_residuals(true):
    mean, target = torch.zeros(50, 3, dtype=torch.float64), true * torch.randn(50, 3, dtype=torch.float64)
    loss = ks.ELBO(50, likelihood=Gaussian()).double()
    (rho,) = loss.parameters()
    std = target.square().mean().sqrt().item()
    for factor, sign in ((0.9, -1), (1.0, 0), (1.1, 1)):
        with torch.no_grad():
            rho.fill_(math.log(math.expm1(factor * std)))
        (slope,) = torch.autograd.grad(loss.likelihood.nll(mean, target), rho)
        assert slope.item() * sign > 1e-3 if sign else abs(slope.item()) < 1e-9


@pytest.mark.parametrize("prior", [1.0, "paper"])
def test_a_prior_that_is_none_is_named_at_once(prior):
    with pytest.raises(ArgumentTypeError, match=r"prior is .*; give a prior, such as ks.priors.Gaussian\(1.0\)"):
        ks.ELBO(10, prior)


@pytest.mark.parametrize(("dtype", "classes"), [(torch.uint8, 256), (torch.int8, 128), (torch.uint8, 200)])
def test_labels_of_eight_bits_are_classes_like_others(dtype, classes):
    likelihood, logits = ks.likelihoods.Categorical(), torch.randn(2, classes)
    labels = torch.tensor([3, min(classes - 1, 156)])
    torch.testing.assert_close(likelihood.nll(logits, labels.to(dtype)), F.cross_entropy(logits, labels))
    with pytest.raises(ArgumentError, match="labels has 120, but the network has 10 outputs"):
        likelihood.nll(torch.randn(1, 10), torch.tensor([120], dtype=dtype))

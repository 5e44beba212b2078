"""Prediction: averages that are what they say, whatever the batches, and nothing left behind."""

import itertools

import pytest
import torch
from kinds import convnet, generator, mlp, trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kernelseed as ks

X = torch.randn(23, 3, generator=generator())
IMAGES = torch.randn(23, 1, 4, 4, generator=generator())
LABELS = torch.arange(23) % 4


def bayesian():
    """A net whose draws differ visibly."""
    return trained(ks.germinate(mlp(3, 6, 4), 0.5, min_rank=2))


def dropping():
    return nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Dropout(0.4), nn.Linear(40, 40), nn.Dropout(0.1), mlp(40, 4))


def images():
    """Convolution and BatchNorm, with statistics that are not the initial ones."""
    net = trained(ks.germinate(convnet(), 0.5, min_rank=2))
    for _ in range(3):
        net.train()(torch.randn(20, 1, 4, 4) + 1)
    return net


def same(a, b):
    for name in ("probs", "expected_entropy", "variance"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name))


# --- the average -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [bayesian, lambda: ks.bayesianize(mlp(3, 6, 4)), lambda: ks.germinate(mlp(3, 6, 4))])
def test_no_samples_is_the_posterior_mean(make):
    net = make()
    p = ks.predict(net, X, samples=0)
    torch.testing.assert_close(p.probs, ks.collapse(net).eval()(X).softmax(1).detach())
    assert p.variance.abs().max() == 0
    assert p.mutual_information.abs().max() < 1e-6


def test_samples_are_draws_of_the_posterior_averaged_after_the_softmax():
    net, g = bayesian(), generator(5)
    posterior = net.posterior()
    each = torch.stack([posterior.draw(g)(X).softmax(1) for _ in range(6)]).detach()
    p = ks.predict(net, X, samples=6, seed=5)
    torch.testing.assert_close(p.probs, each.mean(0))
    torch.testing.assert_close(p.variance, each.var(0, correction=0))
    torch.testing.assert_close(p.expected_entropy, torch.distributions.Categorical(each).entropy().mean(0))
    torch.testing.assert_close(p.entropy, torch.distributions.Categorical(each.mean(0)).entropy())
    torch.testing.assert_close(p.mutual_information, p.entropy - p.expected_entropy)
    assert p.mutual_information.min() > 1e-4
    assert torch.equal(p.label, each.mean(0).argmax(1))
    assert torch.equal(p.confidence, p.probs.max(1).values)
    assert not p.probs.requires_grad


def test_many_draws_converge_to_the_expectation():
    # A linear net's class 1 has logit difference N(m, s^2): the expectation is a one-dimensional integral.
    net = trained(ks.bayesianize(nn.Linear(2, 2, bias=False)))
    x = torch.tensor([[1.0, -2.0]])
    gaussian = net.weights["weight"].moments()
    difference = ((gaussian.mean[1] - gaussian.mean[0]) * x[0]).sum().item()
    spread = (gaussian.std.square().sum(0) * x[0].square()).sum().sqrt().item()
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.distributions.Normal(0, 1).log_prob(z).exp()
    exact = torch.trapezoid(density * torch.sigmoid(difference + spread * z), z).item()
    p = ks.predict(net, x, samples=3000)
    error = (p.variance[0, 1] / 3000).sqrt().item()
    assert abs(p.probs[0, 1].item() - exact) < 5 * error
    assert error < 0.01


def test_probabilities_sum_to_one_and_feed_the_metrics():
    p = ks.predict(bayesian(), X)
    torch.testing.assert_close(p.probs.sum(1), torch.ones(23))
    assert set(ks.metrics.summary(p.probs, LABELS)) >= {"accuracy", "nll", "brier", "ece", "ace", "mce"}


def test_a_plain_module_and_a_fixed_net_have_one_answer():
    model = mlp(3, 6, 4)
    for net in (model, ks.germinate(model, 1.0, fixed=True)):
        p = ks.predict(net, X, samples=10)
        torch.testing.assert_close(p.probs, model(X).softmax(1).detach())
        assert p.variance.max() == 0


def test_one_class_is_certain():
    p = ks.predict(trained(ks.germinate(mlp(3, 6, 1))), X, samples=3)
    assert torch.equal(p.probs, torch.ones(23, 1))
    assert p.entropy.abs().max() == p.mutual_information.abs().max() == p.variance.abs().max() == 0
    assert torch.equal(p.label, torch.zeros(23, dtype=torch.long))


def test_class_axis_one_of_many():
    net = trained(ks.germinate(nn.Conv2d(1, 3, 3, padding=1)))
    p = ks.predict(net, IMAGES, samples=4)
    assert p.probs.shape == p.variance.shape == (23, 3, 4, 4)
    assert p.entropy.shape == p.expected_entropy.shape == p.label.shape == (23, 4, 4)
    torch.testing.assert_close(p.probs.sum(1), torch.ones(23, 4, 4))


def test_extreme_logits_stay_probabilities():
    model = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1e4], [-1e4], [0.0]]))
    p = ks.predict(model, torch.tensor([[1.0], [-1.0], [0.0]]))
    assert p.probs.isfinite().all()
    assert p.entropy[:2].abs().max() == 0
    assert p.mutual_information.min() >= 0


# --- whatever the batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [bayesian, dropping], ids=["bayesian", "dropout"])
@pytest.mark.parametrize("samples", [0, 1, 5])
def test_the_same_result_for_any_batch_size(make, samples):
    net = make()
    whole = ks.predict(net, X, samples, batch_size=1000)
    for batch_size in (1, 7, 22, 23):
        same(ks.predict(net, X, samples, batch_size=batch_size), whole)


@pytest.mark.parametrize("make", [bayesian, dropping], ids=["bayesian", "dropout"])
def test_tensors_loaders_and_mappings_are_the_same_data(make):
    net = make()
    whole = ks.predict(net, X, samples=3)
    for data in (
        DataLoader(TensorDataset(X, LABELS), batch_size=5),
        DataLoader(X, batch_size=9),
        [X[:10], X[10:]],
        [[X[:10], LABELS[:10]], [X[10:], LABELS[10:]]],
        ({"input": part, "labels": None} for part in X.split(4)),
    ):
        same(ks.predict(net, data, samples=3), whole)


def test_the_seed_decides():
    for net in (bayesian(), dropping()):
        one, two = (ks.predict(net, X, samples=3, seed=seed).probs for seed in (0, 1))
        assert not torch.allclose(one, two)
        torch.manual_seed(99)
        assert torch.equal(ks.predict(net, X, samples=3, seed=0).probs, one)
        state = torch.get_rng_state()
        ks.predict(net, X, samples=3)
        assert torch.equal(state, torch.get_rng_state())


def test_each_draw_is_made_once_for_the_whole_data_set():
    net = bayesian()
    calls = []
    for _, distribution in net.weights.items():
        distribution.register_forward_hook(lambda *_: calls.append(1))
    repeated = X[:1].expand(12, 3)
    p = ks.predict(net, repeated, samples=4, batch_size=2)
    assert len(calls) <= len(net.weights)
    # The same draws for every batch: equal rows have equal predictions.
    torch.testing.assert_close(p.probs, p.probs[:1].expand(12, 4), rtol=0, atol=1e-6)


def test_an_empty_tensor_has_an_empty_prediction():
    for net in (bayesian(), dropping()):
        p = ks.predict(net, X[:0], samples=3)
        assert p.probs.shape == p.variance.shape == (0, 4)
        assert p.entropy.shape == p.label.shape == p.mutual_information.shape == (0,)


# --- nothing left behind ---------------------------------------------------------------------------------------


class Breaks(nn.Module):
    """Raises on the second batch."""

    def __init__(self):
        super().__init__()
        self.net = convnet(dropout=nn.Dropout(0.2))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("second batch")
        return self.net(x)


def state(net):
    return (
        [m.training for m in net.modules()],
        [getattr(m, "momentum", None) for m in net.modules()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()],
        [(name, value.tolist()) for name, value in net.state_dict().items()],
    )


@pytest.mark.parametrize("convert", [lambda m: ks.germinate(m), lambda m: m], ids=["bayesian", "plain"])
@pytest.mark.parametrize("recalibrate", [None, [IMAGES[:8], IMAGES[8:16]]], ids=["", "recalibrate"])
@pytest.mark.parametrize("samples", [0, 2])
def test_modes_and_buffers_are_restored(convert, recalibrate, samples):
    net = convert(convnet(dropout=nn.Dropout(0.2)))
    net.train()
    list(net.modules())[-1].eval()  # a mixture of modes
    before = state(net)
    ks.predict(net, IMAGES, samples, recalibrate=recalibrate)
    assert state(net) == before


@pytest.mark.parametrize("convert", [lambda m: ks.germinate(m), lambda m: m], ids=["bayesian", "plain"])
@pytest.mark.parametrize("recalibrate", [None, [IMAGES[:8], IMAGES[8:16]]], ids=["", "recalibrate"])
@pytest.mark.parametrize("samples", [0, 2])
def test_modes_and_buffers_are_restored_when_forward_raises(convert, recalibrate, samples):
    net = convert(Breaks())
    net.train()
    list(net.modules())[-1].eval()
    before = state(net)
    with pytest.raises(RuntimeError, match="second batch"):
        ks.predict(net, IMAGES, samples, batch_size=12, recalibrate=recalibrate)
    assert state(net) == before


def test_prediction_ignores_the_mode():
    net = images()
    same(ks.predict(net.train(), IMAGES), ks.predict(net.eval(), IMAGES))


# --- MC-dropout ------------------------------------------------------------------------------------------------


def test_mc_dropout_averages_over_the_masks():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Dropout(0.3), nn.Linear(3, 2))
    with torch.no_grad():
        net[3].weight.mul_(3)
    x = torch.tensor([[0.5, -1.0]])
    hidden = net[1](net[0](x))
    exact = torch.zeros(2)
    for mask in itertools.product([0.0, 1.0], repeat=3):
        kept = torch.tensor(mask)
        chance = torch.where(kept > 0, 0.7, 0.3).prod()
        exact += chance * net[3](hidden * kept / 0.7).softmax(1)[0].detach()
    # Every row has masks of its own, so rows and passes are all independent.
    p = ks.predict(net, x.expand(2000, 2), samples=10)
    error = (p.probs.var(0) / 2000).sqrt()
    assert ((p.probs.mean(0) - exact).abs() < 5 * error).all()
    assert error.max() < 0.005
    assert p.probs[:, 0].unique().numel() > 100


@pytest.mark.parametrize(
    ("layer", "shape", "whole"),
    [
        (nn.Dropout(0.5), (40, 6, 3, 3), False),
        (nn.Dropout(0.5, inplace=True), (40, 6), False),
        (nn.Dropout1d(0.5), (40, 6, 9), True),
        (nn.Dropout2d(0.5), (40, 6, 3, 3), True),
        (nn.Dropout3d(0.5), (40, 6, 2, 2, 2), True),
    ],
)
def test_dropout_layers_drop_what_they_say(layer, shape, whole):
    x = torch.ones(shape)
    output = ks.predict(nn.Sequential(layer), x, samples=1, likelihood=ks.likelihoods.Gaussian(1.0)).mean
    assert set(output.unique().tolist()) == {0.0, 2.0}
    assert output.mean().item() == pytest.approx(1, abs=0.4)
    channels = output.flatten(2) if len(shape) > 2 else output[:, :, None]
    uniform = (channels == channels[:, :, :1]).all(2)
    assert uniform.all() == (whole or len(shape) == 2)
    assert not torch.equal(output[0], output[1])
    assert torch.equal(x, torch.ones(shape))


def test_dropout_layers_and_passes_have_masks_of_their_own():
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    x = torch.ones(1000, 4)
    p = ks.predict(net, x, samples=2, likelihood=ks.likelihoods.Gaussian(1.0))
    # Two layers keep a quarter (not a half, as one mask twice would), two passes agree in 10 of 16 cases.
    kept = {0.0: 9 / 16, 2.0: 6 / 16, 4.0: 1 / 16}
    for value, share in kept.items():
        assert (p.mean == value).float().mean().item() == pytest.approx(share, abs=0.05)


def test_a_dropout_layer_used_twice_drops_twice():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(self.drop(x))

    output = ks.predict(Shared(), torch.ones(1000, 4), samples=1, likelihood=ks.likelihoods.Gaussian(1.0)).mean
    assert (output > 0).float().mean().item() == pytest.approx(0.25, abs=0.05)


def test_dropout_of_zero_or_of_no_samples_is_the_plain_network():
    net = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.0), nn.Linear(5, 4))
    torch.testing.assert_close(ks.predict(net, X).probs, net.eval()(X).softmax(1).detach())
    net = dropping()
    torch.testing.assert_close(ks.predict(net, X, samples=0).probs, net.eval()(X).softmax(1).detach())


# --- regression ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.3, "learned", "output"])
def test_regression_has_a_mean_and_two_variances(noise):
    net, likelihood = bayesian(), ks.likelihoods.Gaussian(noise)
    g = generator(2)
    posterior = net.posterior()
    outputs = torch.stack([posterior.draw(g)(X) for _ in range(5)]).detach()
    means, variances = outputs, torch.full_like(outputs, {0.3: 0.09, "learned": 1.0}.get(noise, 0.0))
    if noise == "output":
        means, variances = outputs[..., :2], nn.functional.softplus(outputs[..., 2:]).square()
    p = ks.predict(net, X, 5, likelihood=likelihood, seed=2, batch_size=6)
    assert isinstance(p, ks.Regression)
    torch.testing.assert_close(p.mean, means.mean(0))
    torch.testing.assert_close(p.epistemic, means.var(0, correction=0))
    torch.testing.assert_close(p.aleatoric, variances.mean(0))
    torch.testing.assert_close(p.variance, p.epistemic + p.aleatoric)
    torch.testing.assert_close(p.std, p.variance.sqrt())
    assert not p.mean.requires_grad
    assert not p.aleatoric.requires_grad


def test_the_wider_the_posterior_the_larger_the_epistemic_part():
    likelihood, x = ks.likelihoods.Gaussian(noise=0.1), torch.ones(1, 1)
    for rho_offset in (-7.0, -3.0):
        net = ks.bayesianize(nn.Linear(1, 1), rho_offset=rho_offset)
        p = ks.predict(net, x, samples=2000, likelihood=likelihood)
        # x = 1, so the output's variance is the weight's; 2000 draws know it to 3 %.
        assert p.epistemic.item() == pytest.approx(net.weights["weight"].moments().std.item() ** 2, rel=0.16)
        assert p.aleatoric.item() == pytest.approx(0.01)


# --- BatchNorm -------------------------------------------------------------------------------------------------


def calibrated_by_hand(plain, batches):
    """Plain PyTorch: reset, average over the batches in train mode, then predict."""
    for m in plain.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.reset_running_stats()
            m.momentum = None
            m.train()
    with torch.no_grad():
        for batch in batches:
            plain(batch)
    return plain.eval()


@pytest.mark.parametrize("samples", [0, 3])
def test_recalibration_gives_each_draw_statistics_of_its_own(samples):
    net, batches = images(), [IMAGES[:8], IMAGES[8:15], IMAGES[15:]]
    g, posterior = generator(), net.posterior()
    draws = [posterior.draw(g) for _ in range(samples)] or [posterior.mean()]
    plains = [calibrated_by_hand(ks.collapse(net, draw).eval(), batches) for draw in draws]
    expected = torch.stack([plain(IMAGES).softmax(1).detach() for plain in plains]).mean(0)
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    p = ks.predict(net, IMAGES, samples, recalibrate=batches)
    torch.testing.assert_close(p.probs, expected)
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())
    assert not torch.allclose(p.probs, ks.predict(net, IMAGES, samples).probs)


def test_first_layer_statistics_are_means_and_variances():
    plain = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))
    train = 2 * torch.randn(60, 3) + torch.tensor([1.0, -1.0, 0.0])
    mean, variance = train.mean(0), train.var(0)
    expected = plain[1]((X - mean) / (variance + plain[0].eps).sqrt()).softmax(1).detach()
    torch.testing.assert_close(ks.predict(plain, X, recalibrate=[train]).probs, expected)
    assert torch.equal(plain[0].running_mean, torch.zeros(3))


def test_recalibration_of_plain_and_dropout_networks():
    batches = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=8)
    plain = convnet()
    expected = calibrated_by_hand(nn.Sequential(*plain).eval(), [x for x, _ in batches])(IMAGES).softmax(1).detach()
    for m in plain:
        if isinstance(m, nn.BatchNorm2d):
            m.reset_running_stats()
            m.momentum = 0.1
    torch.testing.assert_close(ks.predict(plain, IMAGES, recalibrate=batches).probs, expected)
    dropout = convnet(dropout=nn.Dropout(0.3))
    one = ks.predict(dropout, IMAGES, samples=3, recalibrate=batches)
    same(ks.predict(dropout, IMAGES, samples=3, recalibrate=batches, batch_size=5), one)
    assert one.variance.max() > 0
    assert not torch.allclose(one.probs, ks.predict(dropout, IMAGES, samples=3).probs)
    assert torch.equal(dropout[1].running_mean, torch.zeros(4))


def test_recalibration_of_mappings():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = convnet()

        def forward(self, image):
            return self.net(image)

    net = Named()
    a = ks.predict(net, [{"image": IMAGES}], recalibrate=[{"image": IMAGES, "labels": LABELS}])
    same(a, ks.predict(net.net, IMAGES, recalibrate=[IMAGES]))


def test_networks_without_batchnorm_have_nothing_to_recalibrate():
    net = bayesian()
    same(ks.predict(net, X, recalibrate=[X]), ks.predict(net, X))


# --- ensembles -------------------------------------------------------------------------------------------------


def test_a_sequence_is_averaged():
    models = [mlp(3, 6, 4) for _ in range(3)]
    each = torch.stack([model(X).softmax(1) for model in models]).detach()
    p = ks.predict(models, X)
    torch.testing.assert_close(p.probs, each.mean(0))
    torch.testing.assert_close(p.variance, each.var(0, correction=0))
    same(ks.predict(tuple(models), X, batch_size=4), p)


def test_mutual_information_is_never_negative_by_rounding():
    members = [mlp(3, 6, 4)] * 3  # they agree, so only rounding is left
    p = ks.predict(members, torch.randn(500, 3))
    assert (p.entropy - p.expected_entropy).min() < 0
    assert p.mutual_information.min() == 0
    assert p.mutual_information.max() < 1e-5


def test_draws_are_averaged_as_they_are():
    net = bayesian()
    draws = [net.draw() for _ in range(3)]
    each = torch.stack([draw(X).softmax(1) for draw in draws]).detach()
    torch.testing.assert_close(ks.predict(draws, X, samples=7).probs, each.mean(0))


def test_an_ensemble_of_bayesian_networks_averages_all_draws():
    nets = [bayesian(), bayesian()]
    each = [ks.predict(net, X, samples=4) for net in nets]
    p = ks.predict(nets, X, samples=4)
    torch.testing.assert_close(p.probs, (each[0].probs + each[1].probs) / 2)
    torch.testing.assert_close(p.expected_entropy, (each[0].expected_entropy + each[1].expected_entropy) / 2)


def test_recalibrated_ensembles_of_plain_networks():
    models = [convnet(), convnet()]
    p = ks.predict(models, IMAGES, recalibrate=[IMAGES])
    each = [ks.predict(model, IMAGES, recalibrate=[IMAGES]).probs for model in models]
    torch.testing.assert_close(p.probs, torch.stack(each).mean(0))

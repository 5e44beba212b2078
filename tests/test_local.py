"""Local reparameterisation: outputs against closed forms, gradients against a literal reference, all else as ever."""

import copy

import pytest
import torch
import torch.nn.functional as F
from kinds import generator, trained
from torch import nn
from torch.utils.checkpoint import checkpoint

import kernelseed as ks
from kernelseed.fast import LocalWeight

LAYERS = {
    "linear": (nn.Linear(6, 5), (6,)),
    "linear on sequences": (nn.Linear(6, 5, bias=False), (3, 6)),
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), (4, 5)),
    "conv2d grouped": (nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2, bias=False), (4, 5, 4)),
    "conv2d": (nn.Conv2d(3, 4, 2, padding="same", dilation=2), (3, 4, 4)),
    "transposed": (nn.ConvTranspose2d(4, 3, 3, stride=2), (4, 2, 3)),
}


def every_parameter(layer, seeds):
    """Biases are mean-field in both."""
    torch.manual_seed(0)

    def make(weight):
        if not seeds or weight.dim() < 2:
            return ks.MeanField(weight, -1.0)
        return ks.KernelSeed(
            torch.randn(2, max(weight.shape[:2]), *weight.shape[2:]),
            torch.randn(min(weight.shape[:2]), 2),
            -1.0,
            weight.shape,
        )

    return trained(ks.convert(layer, make, lambda name, parameter: True, least_axes=1))


def moments_of(net):
    return {name: weight.moments() for name, weight in net.weights.items()}


@pytest.mark.parametrize("seeds", [False, True], ids=["mean-field", "kernel seed"])
@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)
def test_outputs_have_the_mean_and_the_variance_of_ordinary_draws(layer, shape, seeds):
    net, count = every_parameter(layer, seeds), 4000
    x = torch.randn(shape, generator=generator())
    with torch.no_grad():
        outputs = net.draw(generator(1), local=True)(x.expand(count, *shape)).double()
        exact = moments_of(net)
        mean = torch.func.functional_call(layer, {name: g.mean for name, g in exact.items()}, x[None])
        variances = {name: g.std.square() for name, g in exact.items()}
        variance = torch.func.functional_call(layer, variances, x[None].square())
    scores = (outputs - mean) / variance.sqrt()
    # With other seeds, bounds of 5 standard errors would fail once in a thousand runs of all cases.
    assert scores.mean(0).abs().max() < 5 / count**0.5
    assert (scores.square().mean(0) - 1).abs().max() < 5 * (2 / count) ** 0.5
    assert (scores[1:] * scores[:-1]).mean(0).abs().max() < 5 / count**0.5  # every example has its own noise
    flat = scores.flatten(1)
    assert ((flat.T @ flat) / count - torch.eye(flat.shape[1])).abs().max() < 0.12  # and so has every output


@pytest.mark.parametrize("seeds", [False, True], ids=["mean-field", "kernel seed"])
def test_gradients_are_those_of_the_literal_formula(seeds):
    net = every_parameter(nn.Linear(4, 3), seeds).double()
    x = torch.randn(5, 4, generator=generator(), dtype=torch.float64, requires_grad=True)
    target = torch.randn(5, 3, generator=generator(1), dtype=torch.float64)

    def gradients(outputs):
        return torch.autograd.grad((outputs * target).sum() + outputs.pow(3).sum(), [x, *net.parameters()])

    found = net.draw(generator(2), local=True)(x)
    w, b = (moments_of(net)[name] for name in ("weight", "bias"))
    literal = []
    for n in range(5):
        for o in range(3):
            mean = b.mean[o] + sum(w.mean[o, i] * x[n, i] for i in range(4))
            std = (b.std[o] ** 2 + sum(w.std[o, i] ** 2 * x[n, i] ** 2 for i in range(4))).sqrt()
            noise = ((found[n, o] - mean) / std).detach()
            literal.append(mean + std * noise)
    expected = gradients(torch.stack(literal).view(5, 3))
    torch.testing.assert_close(gradients(found), expected)


def test_the_gradient_is_that_of_the_expected_loss_and_varies_less():
    """For squares the expectation is known: (x mu - y)^2 + x^2 sigma^2, summed over a batch of one repeated example."""
    net = every_parameter(nn.Linear(3, 1, bias=False), seeds=False)
    x, y = torch.tensor([[1.0, -2.0, 0.5]]).expand(64, 3), 0.7
    weight = net.weights["weight"]

    def gradient(local, seed):
        loss = (net.draw(generator(seed), local=local)(x) - y).square().mean()
        return torch.cat(torch.autograd.grad(loss, [weight.mu, weight.rho]))

    moments = weight.moments()
    expected_loss = (x[0] @ moments.mean[0] - y).square() + x[0].square() @ moments.std[0].square()
    expected = torch.cat(torch.autograd.grad(expected_loss, [weight.mu, weight.rho]))
    ordinary, local = (torch.stack([gradient(local, seed) for seed in range(60)]) for local in (False, True))
    for found in (ordinary, local):
        assert ((found.mean(0) - expected).abs() < 4.5 * found.std(0) / 60**0.5).all()
    assert (local.var(0) < ordinary.var(0) / 10).all()  # 64 examples


def test_it_is_a_draw_the_weights_and_kls_of_an_ordinary_one():
    net = every_parameter(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)), seeds=True)
    local, ordinary = (net.draw(generator(), local=local) for local in (True, False))
    torch.testing.assert_close(local.weights, ordinary.weights)
    torch.testing.assert_close(local.weights_only().weights, ordinary.weights)
    assert local.num_weights == ordinary.num_weights
    other = trained(copy.deepcopy(net)).as_prior()
    for prior in (ks.priors.Gaussian(0.5), ks.ScaleMixture(), other, other.decoded()):
        kls = [net.draw(generator(), local=each).kl(prior) for each in (True, False)]
        torch.testing.assert_close(*kls)
        torch.testing.assert_close(*(torch.autograd.grad(kl, net.parameters()) for kl in kls))
    x = torch.randn(3, 6)
    assert torch.equal(local(x), local(x))
    assert not torch.equal(local(x), net.draw(local=True)(x))


def test_other_layers_and_other_distributions_get_an_ordinary_weight():
    model = nn.Sequential(nn.Embedding(9, 8), nn.GRU(8, 6, batch_first=True))
    net = trained(ks.germinate(model, 0.5, min_rank=2, over="weights"))
    assert_runs_as_ever(net, torch.arange(8).view(2, 4))
    layer = nn.Linear(20, 30)
    for over in (ks.germinate(layer, 0.2, min_rank=2, over="factors"), ks.prune(ks.bayesianize(layer), 0.5)):
        assert_runs_as_ever(over, torch.randn(5, 20))
    assert_runs_as_ever(ks.convert(layer, Shifted), torch.randn(5, 20))
    fixed = ks.germinate(layer, 0.5, fixed=True)
    torch.testing.assert_close(fixed.draw(local=True)(torch.ones(1, 20)), fixed.mean()(torch.ones(1, 20)))


class Shifted(ks.MeanField):
    """A user's distribution with a sample of its own, whose Gaussian says less than it does."""

    def sample(self, noise):
        return ks.Gaussian(self.mu + 1, None).at_mean()


def assert_runs_as_ever(net, x):
    outputs = [net.draw(generator(), local=local)(x) for local in (False, True)]
    torch.testing.assert_close(*[out[0] if isinstance(out, tuple) else out for out in outputs])


def test_a_local_bias_beside_another_weight_is_an_ordinary_one():
    """A product of factors runs its layer itself, and does not know of random biases."""
    layer = nn.Linear(20, 30)
    factors = ks.germinate(layer, 0.2, min_rank=2, over="factors").weights["weight"]
    for weight in (lambda w: factors, lambda w: ks.germinate(layer, 0.5, fixed=True).weights["weight"]):
        net = ks.convert(layer, lambda w, weight=weight: weight(w) if w.dim() > 1 else ks.MeanField(w), least_axes=1)
        assert isinstance(net.draw(local=True).operands()["bias"], LocalWeight)
        assert_runs_as_ever(net, torch.randn(5, 20))
    only_bias = ks.convert(layer, ks.MeanField, lambda name, parameter: name == "bias", least_axes=1)
    assert_runs_as_ever(only_bias, torch.randn(5, 20))


def test_asked_for_its_shape_or_its_mean_it_answers_as_a_weight():
    net = every_parameter(nn.Linear(6, 5), seeds=False)
    weight, ordinary = (net.draw(generator(), local=local).operands()["weight"] for local in (True, False))
    assert weight.shape == (5, 6)
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight.mean(), ordinary.mean())
    torch.testing.assert_close(F.linear(weight, torch.ones(2, 6)), F.linear(ordinary, torch.ones(2, 6)))


def test_half_precision_and_autocast():
    net, x = every_parameter(nn.Linear(6, 5), seeds=True), torch.randn(4, 6)
    expected = net.draw(generator(), local=True)(x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(net.draw(generator(), local=True)(x).float(), expected, rtol=0.03, atol=0.03)
    found = net.bfloat16().draw(generator(), local=True)(x.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.1)


def test_an_input_of_zeros_has_finite_gradients():
    net = every_parameter(nn.Linear(6, 5, bias=False), seeds=False)
    net.draw(local=True)(torch.zeros(2, 6)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())


def test_checkpointing_computes_the_same_outputs_again():
    net = every_parameter(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), seeds=False)
    x, found = torch.randn(3, 6), []
    for run in (lambda draw: draw(x), lambda draw: checkpoint(draw, x, use_reentrant=False)):
        found.append(torch.autograd.grad(run(net.draw(generator(), local=True)).square().sum(), net.parameters()))
    torch.testing.assert_close(*found)


class Apart(nn.Module):
    """One layer on two inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)

    def forward(self, a, b):
        return self.layer(a) - self.layer(b)


def test_a_layer_that_is_called_again_has_other_noise_on_another_input():
    net = ks.bayesianize(Apart(), rho_offset=0.0)
    a, b = torch.eye(2).split(1)
    outputs = [torch.cat([net.draw(local=local)(a, b) for _ in range(2000)]) for local in (False, True)]
    spreads = [found.std().item() for found in outputs]
    sigma = torch.nn.functional.softplus(torch.tensor(0.0)).item()
    assert spreads == pytest.approx([sigma * 2**0.5] * 2, rel=0.08)
    draw = net.draw(local=True)
    assert torch.equal(draw(a, b), draw(a, b))
    assert not draw(a, a).any()


def test_checkpointing_finds_the_noise_of_each_call():
    class Twice(Apart):
        def forward(self, a, b):
            run = (lambda x: checkpoint(self.layer, x, use_reentrant=False)) if self.again else self.layer
            return (run(a) * run(b) * run(a + b)).sum()

    net, gradients = ks.bayesianize(Twice(), rho_offset=0.0), []
    a, b = torch.randn(2, 5, 2, generator=generator()).unbind()
    for net.skeleton.again in (False, True):
        net.zero_grad()
        net.draw(generator(), local=True)(a, b).backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other)
        assert one.any()


def test_compiled_code_draws_ordinary_weights():
    net = every_parameter(nn.Linear(6, 5), seeds=False)
    x, found = torch.randn(3, 6), []
    for run in (torch.compile(lambda: net.draw(local=True)(x), fullgraph=True, backend="eager"), lambda: net.draw()(x)):
        torch.manual_seed(0)
        found.append(run())
    torch.testing.assert_close(*found)
    ran = torch.func.vmap(lambda row: net.draw(generator(), local=True)(row), randomness="same")(x)
    torch.testing.assert_close(ran, net.draw(generator())(x))


@pytest.mark.parametrize("name", ["bnn", "ksn"])
def test_a_method_trains_with_it_by_an_option(name):
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    y = (x[:, 0] > 0).long()
    method = ks.methods.make(name, local=True, lr=1e-2, **({"over": "weights"} if name == "ksn" else {}))
    net = method.build(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = method.build_optimizer(net, 200)
    for step in range(80):
        method.step(net, optimizer, x, y, ks.schedules.Moment(step, 200))
    assert (ks.predict(net, x, samples=5).label == y).float().mean() > 0.9
    moment = ks.schedules.Moment(0, 200)
    torch.manual_seed(1)
    terms = method.terms(net, x, y, moment)
    torch.manual_seed(1)
    assert terms.nll == F.cross_entropy(net.draw(local=True)(x), y)


def test_factors_have_no_gaussian_outputs():
    with pytest.raises(
        ks.KernelseedError,
        match="with over 'factors'; outputs are Gaussian where weights are: set over to 'weights'",
    ):
        ks.methods.make("ksn", local=True, over="factors")

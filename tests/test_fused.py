"""The fast draw against the slow one: the same noise gives the same weights, KL and gradients."""

import math
import os
import subprocess
import sys

import pytest
import scipy.stats
import torch
from torch import nn

import kernelseed as ks
from kernelseed.core.distributions import Sample
from kernelseed.fast import fused, kernels

MAKERS = {
    "ksn": lambda model: ks.germinate(model, 0.5, min_rank=2),
    "bnn": lambda model: ks.bayesianize(model),
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.fixture(autouse=True)
def _kernels_are_here():
    assert kernels.library() is not None, "these tests need a C compiler, as make setup's machine has"


def network(make, spread=0.3):
    """Sizes that are odd, smaller and larger than a block; both orientations; small and large deviations."""
    net = make(nn.Sequential(nn.Conv2d(3, 41, 3), nn.Conv2d(41, 20, 3), nn.Flatten(), nn.Linear(20 * 16, 7)))
    with torch.no_grad():
        for parameter in net.weights.parameters():
            parameter += spread * torch.randn_like(parameter)
    return net


def loss_of(draw, x):
    return draw(x).square().mean() + 1e-2 * draw.kl(ks.ScaleMixture()) + 1e-3 * draw.kl(ks.ScaleMixture.blundell())


def slow(net, noises):
    """The draw that these noises make, by plain operations in float64."""
    samples = {}
    for name, weight in net.weights.items():
        gaussian, noise = weight(), noises[name].double()
        samples[name] = Sample(gaussian.mean + gaussian.std * noise, gaussian, noise)
    return ks.Draw(net.skeleton, samples)


@every
def test_values_kl_and_gradients_are_those_of_the_slow_draw_in_double_precision(make):
    net, x = network(make), torch.randn(5, 3, 8, 8)
    draw = net.draw()
    assert all(isinstance(sample, fused.FusedSample) for sample in draw.samples.values())
    loss = loss_of(draw, x)
    loss.backward()
    noises = {name: sample.noise for name, sample in draw.samples.items()}
    values = {name: sample.value.detach() for name, sample in draw.samples.items()}
    gradients = {name: p.grad for name, p in net.named_parameters()}

    net.zero_grad()
    net.double()
    reference = slow(net, noises)
    expected = loss_of(reference, x.double())
    expected.backward()
    for name, value in values.items():
        torch.testing.assert_close(value.double(), reference.samples[name].value, rtol=1e-5, atol=1e-5)
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    assert draw.kl(ks.ScaleMixture()).item() == pytest.approx(reference.kl(ks.ScaleMixture()).item(), rel=1e-6)
    for name, parameter in net.named_parameters():
        # float32 against float64: a few units in the last place of the largest entry.
        scale = parameter.grad.abs().max().item()
        torch.testing.assert_close(gradients[name].double(), parameter.grad, rtol=0, atol=5e-6 * scale)


@every
def test_the_gaussian_prior_and_any_other_go_the_slow_way_from_the_same_draw(make):
    net, prior = network(make, 0.05), ks.priors.Gaussian(0.3)
    draw = net.draw()
    expected = sum(prior.kl(w().at_mean()) for _, w in net.weights.items())
    assert draw.kl(prior).item() == pytest.approx(expected.item(), rel=1e-6)

    class Laplace:
        def kl(self, sample):
            return (sample.log_prob() + sample.value.abs() + math.log(2)).sum()

    noises = {name: sample.noise for name, sample in draw.samples.items()}
    draw.kl(Laplace()).backward()
    gradients = {name: p.grad for name, p in net.weights.named_parameters()}
    net.zero_grad()
    net.double()
    slow(net, noises).kl(Laplace()).backward()
    for name, parameter in net.weights.named_parameters():
        scale = parameter.grad.abs().max().item()
        torch.testing.assert_close(gradients[name].double(), parameter.grad, rtol=0, atol=1e-5 * scale)


@every
def test_a_graph_can_be_walked_twice_in_parts_and_beside_another(make):
    net, x = network(make, 0.05), torch.randn(2, 3, 8, 8)
    parameters = list(net.weights.parameters())
    draw = net.draw()
    kl, fit = draw.kl(ks.ScaleMixture()), draw(x).square().mean()

    def gradients(value):
        return torch.autograd.grad(value, parameters, retain_graph=True)

    whole = gradients(fit + 0.1 * kl)
    net.draw().kl(ks.ScaleMixture()).backward()  # another draw's gradient in between
    parts = [f + 0.1 * k for f, k in zip(gradients(fit), gradients(kl), strict=True)]
    for one, two, again in zip(whole, parts, gradients(fit + 0.1 * kl), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5 * one.abs().max().item())
        assert torch.equal(one, again)


@pytest.mark.parametrize("rho", [-100.0, -87.0, -16.0, -3.0, 0.0, 20.0, 100.0])
def test_no_rho_gives_a_zero_deviation_or_anything_that_is_not_finite(rho):
    net = ks.bayesianize(nn.Linear(40, 60), rho_offset=rho)
    draw = net.draw()
    kl = draw.kl(ks.ScaleMixture())
    (draw(torch.randn(3, 40)).mean() + kl).backward()
    weight = net.weights["weight"]
    assert (draw.samples["weight"]._record.std > 0).all()
    for tensor in (draw.samples["weight"].value, kl, weight.mean.grad, weight.rho.grad):
        assert tensor.isfinite().all()
    if rho <= -16:  # nothing but the entropy pulls at so small a deviation
        torch.testing.assert_close(weight.rho.grad, torch.full_like(weight.rho, -1.0), rtol=1e-4, atol=1e-4)


def test_noise_is_standard_normal():
    noise = fused.normal(2_000_000, fused.new_key()).double()
    n = len(noise)
    # Five standard errors of each moment: less than once in a million for all four.
    assert abs(noise.mean()) < 5 / math.sqrt(n)
    assert abs(noise.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((noise**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((noise**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert scipy.stats.kstest(noise[:200_000].numpy(), "norm").pvalue > 1e-6
    tail = (noise.abs() > 4).double().mean()
    assert tail == pytest.approx(6.334e-5, rel=5 / math.sqrt(6.334e-5 * n))
    # The two of a pair, neighbours, and neighbouring pairs are uncorrelated, and so are their squares.
    for lag in (1, 2, 1024, 2048):
        for f in (lambda z: z, torch.square):
            a, b = f(noise[:-lag]), f(noise[lag:])
            assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 5.5 / math.sqrt(n)


def test_noise_does_not_repeat_across_draws_layers_or_ranks():
    net = ks.bayesianize(nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64)))
    streams = []
    for rank in range(2):
        torch.manual_seed(1000 + rank)
        for _ in range(2):
            draw = net.draw()
            streams += [sample.noise.flatten() for sample in draw.samples.values()]
    for i, one in enumerate(streams):
        for two in streams[:i]:
            assert not torch.isin(one, two).float().mean() > 0.01  # 24-bit floats meet by chance now and then
            assert abs(torch.corrcoef(torch.stack((one, two)))[0, 1]) < 5.5 / math.sqrt(len(one))


def test_a_seed_fixes_the_draw_whatever_the_number_of_threads():
    net, found = network(MAKERS["ksn"]), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        draw = net.draw(torch.Generator().manual_seed(3))
        kl = draw.kl(ks.ScaleMixture())
        gradient = torch.autograd.grad(kl, net.weights["1.weight"].rho_offset)[0]
        found.append((draw.samples["1.weight"].noise, kl, gradient))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)  # the matrix product alone may round otherwise
    assert torch.equal(found[0][0], found[1][0])


def test_prediction_draws_from_the_same_gaussians():
    net = network(MAKERS["bnn"], 0.05)
    weight = net.weights["3.weight"].moments()
    posterior = net.posterior()
    values = torch.stack([posterior.draw().weights["3.weight"] for _ in range(60)])
    standard = ((values - weight.mean) / weight.std).flatten()
    assert scipy.stats.kstest(standard.detach().numpy(), "norm").pvalue > 1e-6


def test_functional_transforms_and_other_dtypes_take_the_plain_path():
    net = network(MAKERS["ksn"], 0.05)
    state = dict(net.named_parameters())
    x = torch.randn(2, 3, 8, 8)
    gradients = torch.func.grad(lambda s: torch.func.functional_call(net, s, (x,)).square().mean())(state)
    assert all(g.isfinite().all() for g in gradients.values())
    assert not isinstance(net.double().draw().samples["0.weight"], fused.FusedSample)


@pytest.mark.parametrize("change", [{"KERNELSEED_KERNELS": "0"}, {"PATH": "/nowhere", "CC": "/nowhere/cc"}])
def test_without_a_compiler_draws_are_made_by_plain_operations(change, tmp_path):
    script = (
        "import torch, kernelseed as ks; from kernelseed.fast import fused, kernels\n"
        "net = ks.germinate(torch.nn.Linear(30, 40)); draw = net.draw()\n"
        "print(kernels.library(), type(draw.samples['weight']).__name__, draw.kl(ks.ScaleMixture()).item() > 0)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **change}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["None", "Sample", "True"]


def test_a_user_without_a_home_is_no_failure(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(kernels.Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert kernels.library.__wrapped__() is None


def test_a_source_that_does_not_compile_is_no_failure(monkeypatch, tmp_path):
    (tmp_path / "kernels.c").write_text("this is not C")
    monkeypatch.setattr(kernels, "SOURCE", tmp_path / "kernels.c")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels.library.__wrapped__() is None
    assert [file.name for file in (tmp_path / "kernelseed").iterdir()] == []

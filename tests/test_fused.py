"""The fast draw against the slow one: the same seed gives the same weights, KL and gradients."""

import math
import os
import subprocess
import sys

import pytest
import torch
from kinds import generator
from torch import nn

import kernelseed as ks
from kernelseed.core.weights.fused_sample import FusedSample
from kernelseed.fast import kernels

MAKERS = {
    "ksn": lambda model: ks.germinate(model, 0.5, min_rank=2, over="weights"),
    "bnn": ks.bayesianize,
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
X = torch.randn(5, 3, 8, 8, generator=generator())


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


class Laplace:
    """A prior that the kernels don't know."""

    def kl(self, sample):
        return (sample.log_prob() + sample.value.abs() + math.log(2)).sum()


LOSSES = {
    "one prior": lambda draw, x: draw(x).square().mean() + 1e-2 * draw.kl(ks.ScaleMixture()),
    "two priors": lambda draw, x: draw.kl(ks.ScaleMixture()) + 0.1 * draw.kl(ks.ScaleMixture.blundell()),
    "no prior": lambda draw, x: draw(x).square().mean(),
    "Gaussian prior": lambda draw, x: draw.kl(ks.priors.Gaussian(0.3)),
    "prior of one's own": lambda draw, x: draw.kl(Laplace()),
}


@every
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_values_losses_and_gradients_are_those_of_the_slow_draw_in_double_precision(make, loss):
    net, found = network(make), []
    for dtype in (torch.float32, torch.float64):
        draw = net.to(dtype).draw(generator(1))
        assert all(isinstance(s, FusedSample) == (dtype == torch.float32) for s in draw.samples.values())
        value = loss(draw, X.to(dtype))
        gradients = torch.autograd.grad(value, list(net.weights.parameters()))
        found.append((value.double(), [*draw.weights.values(), *gradients]))
    (fast, tensors), (slow, references) = found
    torch.testing.assert_close(fast, slow, rtol=2e-6, atol=0)
    for tensor, reference in zip(tensors, references, strict=True):
        # float32 against float64: a few units in the last place of the largest entry.
        torch.testing.assert_close(tensor.double(), reference, rtol=0, atol=1e-5 * reference.abs().max().item())


@every
def test_a_graph_can_be_walked_twice_in_parts_and_beside_another(make):
    net = network(make, 0.05)
    parameters = list(net.weights.parameters())
    draw = net.draw()
    kl, fit = draw.kl(ks.ScaleMixture()), draw(X).square().mean()

    def gradients(value):
        return torch.autograd.grad(value, parameters, retain_graph=True)

    whole = gradients(fit + 0.1 * kl)
    net.draw().kl(ks.ScaleMixture()).backward()  # another draw's gradient in between
    parts = [f + 0.1 * k for f, k in zip(gradients(fit), gradients(kl), strict=True)]
    for one, two, again in zip(whole, parts, gradients(fit + 0.1 * kl), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5 * one.abs().max().item())
        assert torch.equal(one, again)


def test_no_rho_gives_a_zero_deviation_or_anything_that_is_not_finite():
    for rho in (-100.0, -87.0, -16.0, -3.0, 0.0, 20.0, 100.0):
        net = ks.bayesianize(nn.Linear(40, 60), rho_offset=rho)
        draw = net.draw()
        kl = draw.kl(ks.ScaleMixture())
        (draw(torch.randn(3, 40)).mean() + kl).backward()
        weight = net.weights["weight"]
        assert (draw.samples["weight"]._drawn.std > 0).all()
        for tensor in (draw.samples["weight"].value, kl, weight.mu.grad, weight.rho.grad):
            assert tensor.isfinite().all()
        if rho <= -16:  # nothing but the entropy pulls at so small a deviation
            torch.testing.assert_close(weight.rho.grad, torch.full_like(weight.rho, -1.0), rtol=1e-4, atol=1e-4)


@every
def test_a_seed_fixes_the_draw_whatever_the_number_of_threads(make):
    net, found = network(make), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        draw = net.draw(generator(3))
        kl = draw.kl(ks.ScaleMixture())
        found.append((draw.samples["1.weight"].noise, kl, *torch.autograd.grad(kl, list(net.weights.parameters()))))
    for one, two in zip(*found, strict=True):  # the matrix product alone may round otherwise
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5 * two.abs().max().item())
    assert torch.equal(found[0][0], found[1][0])


@every
def test_a_late_decoding_has_the_graph_of_the_draw(make):
    net, prior = network(make), ks.priors.Gaussian()
    draw = net.draw()
    with torch.no_grad():
        assert not draw.kl(prior).requires_grad  # which decodes it
    gradients = torch.autograd.grad(draw.kl(prior), list(net.weights.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_functional_transforms_take_the_plain_path_to_the_same_gradients():
    net = network(MAKERS["ksn"], 0.05)
    torch.manual_seed(2)
    net(X).square().mean().backward()
    torch.manual_seed(2)
    state = dict(net.named_parameters())
    gradients = torch.func.grad(lambda s: torch.func.functional_call(net, s, (X,)).square().mean())(state)
    for name, parameter in net.named_parameters():
        scale = 1e-6 + parameter.grad.abs().max().item()
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=1e-4 * scale)


# --- without a compiler ----------------------------------------------------------------------------------------

SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import test_fused
from kernelseed.fast import kernels
torch.manual_seed(0)
torch.save((kernels.library() is None, [test_fused.step(make) for make in test_fused.MAKERS.values()]), sys.argv[2])
"""


def step(make):
    """A draw, its output, KL and gradients, all from one seed."""
    torch.manual_seed(5)
    net = network(make)
    draw = net.draw()
    loss = LOSSES["one prior"](draw, X)
    return [*draw.weights.values(), draw(X), loss, *torch.autograd.grad(loss, list(net.weights.parameters()))]


def test_a_seed_means_the_same_without_a_compiler(tmp_path):
    file = tmp_path / "plain.pt"
    command = [sys.executable, "-c", SCRIPT, os.path.dirname(__file__), str(file)]
    subprocess.run(command, env={**os.environ, "KERNELSEED_KERNELS": "0"}, check=True, timeout=120)
    without, plain = torch.load(file)
    assert without
    for make, expected in zip(MAKERS.values(), plain, strict=True):
        for found, reference in zip(step(make), expected, strict=True):
            torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-5 * reference.abs().max().item())


def test_a_machine_without_a_compiler_or_a_home_is_no_failure(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    with monkeypatch.context() as patch:
        patch.setattr(kernels.Path, "home", homeless)
        patch.delenv("XDG_CACHE_HOME", raising=False)
        assert kernels.library.__wrapped__() is None
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert kernels.library.__wrapped__() is None


def test_a_source_that_does_not_compile_is_no_failure(monkeypatch, tmp_path):
    (tmp_path / "kernels.c").write_text("this is not C")
    monkeypatch.setattr(kernels, "SOURCE", tmp_path / "kernels.c")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels.library.__wrapped__() is None
    assert [file.name for file in (tmp_path / "kernelseed").iterdir()] == []


@pytest.mark.parametrize("others", [-5.0, 2.0], ids=["all small", "large ones too"])
def test_a_rho_that_is_not_a_number_shows(others):
    net = ks.bayesianize(nn.Linear(300, 300, bias=False), rho_offset=others)
    with torch.no_grad():
        net.weights["weight"].rho[1, 2] = torch.nan
    draw = net.draw()
    assert draw.weights["weight"].isnan().nonzero().tolist() == [[1, 2]]
    assert draw.kl(ks.ScaleMixture()).isnan()

"""Ranks by budget, by pattern and by share; sigma relative to the layer; Gaussians on the factors in a network."""

from functools import partial

import pytest
import torch
from kinds import convnet, mlp
from torch import nn

import kernelseed as ks

ALLOCATIONS = ["early", "spectrum", "uniform"]
KINDS = [{}, {"fixed": True}, {"over": "factors"}, {"over": "channels"}]


def count(module):
    return sum(p.numel() for p in module.parameters())


def ranks_of(net):
    return {name: weight.rank for name, weight in net.weights.items()}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_a_budget_is_met_from_below_and_no_layer_could_take_one_more_channel(allocation, kind):
    model = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.Conv2d(12, 20, 3), nn.Linear(80, 10))
    for budget in (0.3, 0.5, 0.8):
        net = ks.germinate(model, budget=budget, allocation=allocation, **kind)
        left = budget * count(model) - count(net)
        assert left >= 0
        for name, rank in ranks_of(net).items():
            weight = net.weights[name]
            if rank < min(weight.shape[:2]):
                one_more = ks.germinate(model, ranks={name: rank + 1}, min_rank=1, delta=1e-9, **kind)
                here = ks.germinate(model, ranks={name: rank}, min_rank=1, delta=1e-9, **kind)
                assert count(one_more) - count(here) > left


def test_a_budget_for_everything_gives_full_rank():
    model = mlp(6, 8, 4)
    assert ranks_of(ks.germinate(model, budget=5.0, over="weights")) == {"0.weight": 6, "2.weight": 4}


def test_a_budget_is_kept_where_weights_have_less_than_full_rank():
    model = mlp(20, 20, 20)
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.copy_(torch.randn(20, 2) @ torch.randn(2, 20))
    net = ks.germinate(model, budget=1.0, allocation="spectrum", over="weights")
    assert 0 <= count(model) - count(net) < 60  # a channel has 20 + 2 x 20


def test_early_is_one_rank_for_all_and_full_rank_for_small_layers():
    ranks = [w.rank for w in ks.germinate(ks.models.resnet18(10, 1), budget=0.31, over="weights").weights.values()]
    assert ranks[0] == 1
    assert ranks[1:5] == [64] * 4
    assert all(81 <= rank <= 83 for rank in ranks[8:20])
    assert ranks[20] == 10


def test_uniform_is_one_share_for_all():
    net = ks.germinate(ks.models.resnet18(10, 1), budget=0.31, allocation="uniform", over="weights")
    shares = [w.rank / min(w.shape[:2]) for w in net.weights.values() if min(w.shape[:2]) >= 64]
    assert max(shares) - min(shares) < 0.04


def test_spectrum_gives_channels_where_the_weight_has_directions():
    model = mlp(40, 40, 40)
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(40, 2) @ torch.randn(2, 40))  # rank 2
    ranks = ranks_of(ks.germinate(model, budget=0.6, allocation="spectrum", over="weights"))
    assert ranks["0.weight"] <= 3
    assert ranks["2.weight"] > 10


def test_ranks_by_pattern_and_the_rest_by_delta():
    net = ks.germinate(mlp(20, 30, 10), 0.5, min_rank=1, ranks={"0.*": 7}, over="weights")
    assert ranks_of(net) == {"0.weight": 7, "2.weight": 5}
    assert ranks_of(ks.germinate(mlp(20, 30, 10), ranks={"*": 999}, over="weights")) == {"0.weight": 20, "2.weight": 10}


def test_the_default_is_a_budget_with_a_floor_under_ranks():
    model = ks.models.resnet18(10, 1)
    assert ranks_of(ks.germinate(model)) == ranks_of(ks.germinate(model, budget=0.31))
    assert ks.germinate(model).weights["fc.weight"].rank == 10
    small = mlp(20, 30, 10)  # .31 of which would be some four channels a layer
    assert ranks_of(ks.germinate(small)) == {"0.weight": 16, "2.weight": 10}
    assert ranks_of(ks.germinate(nn.Linear(2, 1))) == {"weight": 1}
    # Of one layer, the budget is its own, and not that of the network around it.
    last = ks.germinate(model, where=lambda name, parameter: name == "layer4.1.conv2.weight")
    own = ks.germinate(model.layer4[1].conv2)
    assert last.weights["layer4.1.conv2.weight"].rank == own.weights["weight"].rank > 100


@pytest.mark.parametrize("convert", [partial(ks.germinate, over="weights"), ks.bayesianize])
def test_sigma_starts_relative_to_the_layer(convert):
    model = mlp(20, 30, 10)
    with torch.no_grad():
        model[0].weight.mul_(10)
    for name, weight in convert(model, sigma=0.05).weights.items():
        expected = 0.05 * model.get_parameter(name).square().mean().sqrt()
        torch.testing.assert_close(weight.moments().std, expected.expand(weight.shape))


@pytest.mark.parametrize("over", ["factors", "channels"])
def test_gaussians_on_the_factors_train_predict_and_run_as_thin_layers(over):
    torch.manual_seed(0)
    x = torch.randn(200, 1, 4, 4)
    y = (x.mean((1, 2, 3)) > 0).long()
    net = ks.germinate(convnet(16, 2), over=over, min_rank=4)
    loss, optimizer = ks.ELBO(len(x), kl_weight=0.01), torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss(net.draw(), x, y).loss.backward()
        optimizer.step()
    numbers = sum(weight.seed.numel() + weight.mean_germinator.numel() for weight in net.weights.values())
    assert ks.ELBO(len(x))(net.draw(), x, y).kl_weight == 0.05 * len(x) / numbers
    draws = [net.draw().weights_only() for _ in range(2)]
    assert not torch.equal(draws[0](x), draws[1](x))
    operand = draws[0].samples["3.weight"].operand
    assert type(operand).__name__ == "ProductWeight"
    plain = ks.predict(ks.collapse(net), x, samples=0)
    torch.testing.assert_close(ks.predict(net, x, samples=0).probs, plain.probs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ks.factorise(net).eval()(x), ks.collapse(net).eval()(x), rtol=1e-4, atol=1e-5)
    assert ks.metrics.accuracy(ks.predict(net, x, update_bn=x).probs, y) > 0.9


@pytest.mark.parametrize("over", ["factors", "channels"])
@pytest.mark.parametrize(
    "layer", [nn.Conv2d(1, 8, 3), nn.Conv2d(6, 4, 3), nn.Linear(12, 9)], ids=["rank 1", "conv", "linear"]
)
def test_factors_drawn_by_the_kernels_are_those_of_plain_operations(layer, over, monkeypatch):
    """The same weights from the same seed, the same KL, and the same gradients of all parameters."""
    net, found = ks.germinate(layer, 0.5, min_rank=1, over=over), []
    for ways in ("kernels", "plain"):
        if ways == "plain":
            monkeypatch.setattr("kernelseed.core.weights.gaussian_factors.supports", lambda *tensors: False)
        draw = net.draw(torch.Generator().manual_seed(3))
        value, kl = draw.weights["weight"], draw.kl(ks.ScaleMixture())
        gradients = torch.autograd.grad(value.square().sum() + 0.1 * kl, list(net.weights.parameters()))
        found.append((value, kl, gradients))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


BAD = {
    "budget too small": (
        lambda m: ks.germinate(m, budget=1e-4, over="weights"),
        ["budget is 0.0001", "rank 1", "at least"],
    ),
    "budget negative": (lambda m: ks.germinate(m, budget=-1, over="weights"), ["budget is -1", "above 0"]),
    "budget nan": (lambda m: ks.germinate(m, budget=float("nan"), over="weights"), ["budget is nan"]),
    "budget and delta": (
        lambda m: ks.germinate(m, 0.5, budget=0.3, over="weights"),
        ["budget is 0.3", "leave out delta"],
    ),
    "allocation unknown": (
        lambda m: ks.germinate(m, budget=0.5, allocation="late", over="weights"),
        ["'late'", "'early'"],
    ),
    "no such layer": (
        lambda m: ks.germinate(m, ranks={"head.*": 3}, over="weights"),
        ["'head.*'", "0.weight", "2.weight"],
    ),
    "rank zero": (lambda m: ks.germinate(m, ranks={"0.*": 0}, over="weights"), ["ranks has 0", "at least 1"]),
    "over unknown": (lambda m: ks.germinate(m, over="biases"), ["'biases'", "'weights'", "'factors'", "'channels'"]),
    "fixed factors": (lambda m: ks.germinate(m, over="factors", fixed=True), ["fixed=True", "leave one"]),
    "offset for factors": (
        lambda m: ks.germinate(m, over="factors", rho_offset=-3.0),
        ["rho_offset is -3.0", "sigma"],
    ),
    "delta a word": (lambda m: ks.germinate(m, "x", over="weights"), ["delta is 'x'", "must be a number"]),
    "min_rank a fraction": (
        lambda m: ks.germinate(m, min_rank=2.5, over="weights"),
        ["min_rank is 2.5", "whole number"],
    ),
    "budget a word": (lambda m: ks.germinate(m, budget="x", over="weights"), ["budget is 'x'", "must be a number"]),
    "ranks a word": (lambda m: ks.germinate(m, ranks="x", over="weights"), ["ranks is 'x'", "layer1.*"]),
    "ranks by number": (
        lambda m: ks.germinate(m, ranks={3: 4}, over="weights"),
        ["ranks is {3: 4}", "names of weights"],
    ),
    "sigma a word": (lambda m: ks.bayesianize(m, sigma="x"), ["sigma is 'x'", "must be a number"]),
    "offset a word": (lambda m: ks.bayesianize(m, rho_offset="x"), ["rho_offset is 'x'", "must be a number"]),
    "sigma zero": (lambda m: ks.germinate(m, sigma=0.0, over="weights"), ["sigma is 0.0", "above 0"]),
}


@pytest.mark.parametrize(("call", "words"), BAD.values(), ids=BAD)
def test_bad_arguments(call, words):
    with pytest.raises((ks.errors.ArgumentError, ks.errors.ArgumentTypeError)) as caught:
        call(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10)))
    assert all(word in str(caught.value) for word in words), caught.value

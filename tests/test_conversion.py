"""Conversion: what becomes a distribution, what stays, and that nothing happens to the model that was given."""

import copy
import time

import pytest
import torch
from kinds import DISTRIBUTIONS, KINDS, convnet, generator, mlp
from torch import nn

import kernelseed as ks

CONVERSIONS = {
    "germinate": lambda model, **kwargs: ks.germinate(model, 1.0, **kwargs),
    "fixed": lambda model, **kwargs: ks.germinate(model, 1.0, fixed=True, **kwargs),
    "bayesianize": ks.bayesianize,
}
every_conversion = pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)


def count(module):
    return sum(p.numel() for p in module.parameters())


def snapshot(model):
    """Everything about a model that a conversion might disturb."""
    return {
        "class": [type(m) for m in model.modules()],
        "modes": [m.training for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "parameters": [(name, id(p), p._version, p.requires_grad, p.grad) for name, p in model.named_parameters()],
        "values": {name: value.clone() for name, value in model.state_dict().items()},
        "attributes": [sorted(m.__dict__) for m in model.modules()],
    }


@pytest.mark.parametrize("kind", KINDS)
@every_conversion
def test_the_net_you_give_is_the_net_you_start_from(kind, convert):
    model, x = KINDS[kind].make().double().eval(), KINDS[kind].inputs(torch.float64)
    net = convert(model)
    assert isinstance(net, ks.BayesianModule)
    torch.testing.assert_close(net(*x), model(*x), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@every_conversion
def test_the_model_is_left_untouched(kind, convert):
    model, x = KINDS[kind].make(), KINDS[kind].inputs()
    list(model.modules())[-1].eval()
    before = snapshot(model)
    net = convert(model)
    net.draw()(*x).sum().backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    after = snapshot(model)
    assert all(torch.equal(before["values"][name], after["values"][name]) for name in before["values"])
    del before["values"], after["values"]
    assert before == after


def test_batchnorm_statistics_and_plain_parameters_are_copies():
    model = convnet()
    net = ks.germinate(model)
    net.train()(torch.randn(8, 1, 4, 4))
    assert int(model[1].num_batches_tracked) == 0
    assert int(net.skeleton[1].num_batches_tracked) == 1
    with torch.no_grad():
        net.skeleton[1].weight.zero_()
    assert model[1].weight.all()


@every_conversion
def test_modes_are_kept(convert):
    model = convnet()
    model[1].eval()
    net = convert(model)
    assert net.training
    assert [m.training for m in net.skeleton.modules()] == [m.training for m in model.modules()]
    assert not convert(model.eval()).training


# --- the default choice ----------------------------------------------------------------------------------------


class RMSNormOfSomeFramework(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 4))

    def forward(self, x):
        return self.scale * x


def test_weights_of_two_axes_outside_normalisation_are_chosen():
    model = nn.Sequential(
        nn.Linear(4, 4),
        nn.LayerNorm((3, 4)),
        RMSNormOfSomeFramework(),
        nn.Sequential(nn.BatchNorm1d(3), nn.Conv1d(3, 3, 1), nn.GroupNorm(1, 3), nn.InstanceNorm1d(3, affine=True)),
        nn.RMSNorm((3, 4)),
    )
    assert model[1].weight.dim() == model[4].weight.dim() == 2
    for convert in CONVERSIONS.values():
        net = convert(model)
        assert list(net.weights) == ["0.weight", "3.1.weight"]
        assert net(torch.randn(2, 3, 4)).shape == (2, 3, 4)
        plain = {name for name, _ in net.skeleton.named_parameters()}
        assert plain == {name for name, _ in model.named_parameters()} - {"0.weight", "3.1.weight"}


def test_where_is_asked_about_names_and_parameters():
    asked = []

    def where(name, parameter):
        asked.append((name, tuple(parameter.shape)))
        return parameter.shape[0] == 5

    net = ks.germinate(mlp(3, 5, 2), where=where)
    assert asked == [("0.weight", (5, 3)), ("2.weight", (2, 5))]
    assert list(net.weights) == ["0.weight"]
    assert net.skeleton[2].weight.shape == (2, 5)


def test_where_may_choose_a_normalisation_weight_and_biases_for_mean_field():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((3, 4)))
    assert list(ks.germinate(model, where=lambda name, p: name == "1.weight").weights) == ["1.weight"]
    everything = ks.bayesianize(model, where=lambda name, p: True)
    assert list(everything.weights) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert not list(everything.skeleton.parameters())
    draw = everything.draw()
    assert draw(torch.randn(2, 3, 4)).shape == (2, 3, 4)
    assert draw.num_weights == count(model)
    assert list(ks.germinate(model, where=lambda name, p: True).weights) == ["0.weight", "1.weight", "1.bias"]


@every_conversion
def test_a_layer_may_have_the_name_of_a_method(convert):
    names = ("keys", "items", "names", "aliases", "values", "seed", "mean", "rho", "shape", "weight")
    model = nn.Module()
    for name in names:
        model.add_module(name, nn.Linear(2, 2))
    net = convert(model)
    assert list(net.weights) == [f"{name}.weight" for name in names]
    for name in names:
        assert net.weights[f"{name}.weight"].moments().mean.shape == (2, 2)
    twin = convert(model)
    twin.load_state_dict(net.state_dict())


# --- tied weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_tied_weights_stay_tied(distribution):
    net, x = DISTRIBUTIONS[distribution](KINDS["tied"].make()), KINDS["tied"].inputs()
    assert list(net.weights) == ["embedding.weight"]
    assert net.weights["output.weight"] is net.weights["embedding.weight"]
    assert "output.weight" in net.weights
    assert len(net.weights) == 1
    draw = net.draw()
    assert draw.weights["output.weight"] is draw.weights["embedding.weight"]
    assert not any(key.startswith("weights.output") for key in net.state_dict())
    plain = ks.collapse(net)
    assert plain.output.weight is plain.embedding.weight
    torch.testing.assert_close(plain(*x), net.mean()(*x))


def test_gradients_of_tied_weights_come_from_both_places_once():
    model, x = KINDS["tied"].make().double(), KINDS["tied"].inputs()
    net = ks.bayesianize(model)
    model(*x).square().sum().backward()
    net.mean()(*x).square().sum().backward()
    torch.testing.assert_close(net.weights["embedding.weight"].mean.grad, model.embedding.weight.grad)


def test_a_tied_weights_kl_counts_once():
    net = ks.bayesianize(KINDS["tied"].make())
    assert net.draw().num_weights == 28
    prior = ks.priors.Gaussian()
    torch.testing.assert_close(net.draw().kl(prior), prior.kl(net.weights["embedding.weight"].moments().at_mean()))


def test_where_finds_a_tied_weight_by_its_first_name():
    net = ks.bayesianize(KINDS["tied"].make(), where=lambda name, p: name == "embedding.weight")
    assert net.skeleton.output.weight is None


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_module_that_stands_twice_is_one_module(distribution):
    model, x = KINDS["twice"].make(), KINDS["twice"].inputs()
    net = DISTRIBUTIONS[distribution](model)
    assert list(net.weights) == ["first.weight"]
    assert net.skeleton.first is net.skeleton.second
    net.draw()(*x)
    assert net.skeleton.first.weight is None
    plain = ks.collapse(net)
    assert plain.first is plain.second
    torch.testing.assert_close(plain(*x), net.mean()(*x))


def test_a_module_that_stands_twice_has_gradients_from_both_places():
    model, x = KINDS["twice"].make().double(), KINDS["twice"].inputs(torch.float64)
    net = ks.bayesianize(model)
    model(*x).square().sum().backward()
    net.mean()(*x).square().sum().backward()
    torch.testing.assert_close(net.weights["first.weight"].mean.grad, model.first.weight.grad)


# --- what else a parameter may be ------------------------------------------------------------------------------


@every_conversion
def test_frozen_parameters_stay_frozen(convert):
    model = mlp(3, 4, 2)
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    net = convert(model)
    assert not any(p.requires_grad for p in net.weights["0.weight"].parameters())
    assert all(p.requires_grad for p in net.weights["2.weight"].parameters())
    assert net.skeleton[0].bias.requires_grad
    assert not net.skeleton[2].bias.requires_grad
    draw = net.draw()
    (draw(torch.randn(4, 3)).sum() + draw.kl(ks.ScaleMixture())).backward()
    assert all(p.grad is None for p in net.weights["0.weight"].parameters())
    assert all(p.grad is not None for p in net.weights["2.weight"].parameters())


@every_conversion
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_is_the_models(convert, dtype):
    net = convert(mlp(3, 4, 2).to(dtype))
    assert {p.dtype for p in net.parameters()} == {dtype}


def test_parameters_without_a_number_stay():
    model = nn.Sequential(nn.Linear(3, 2))
    model.empty = nn.Parameter(torch.empty(0, 4))
    model.whole = nn.Parameter(torch.zeros(2, 2, dtype=torch.int64), requires_grad=False)
    net = ks.germinate(model)
    assert list(net.weights) == ["0.weight"]


def test_only_the_mean_field_doubles_what_is_stored():
    model = nn.Linear(8, 8, bias=False)
    assert count(ks.bayesianize(model)) == 2 * 64
    assert count(ks.germinate(model, 0.25, min_rank=1)) == 2 * 8 + 2 * 8 * 2 + 1
    assert count(ks.germinate(model, 0.25, min_rank=1, fixed=True)) == 2 * 8 + 8 * 2


def test_converted_parameters_are_gone_from_the_skeleton():
    net = ks.germinate(convnet())
    assert net.skeleton[0].weight is None
    assert not any(p.dim() >= 2 for p in net.skeleton.parameters())
    assert {id(p) for p in net.parameters()} == {id(p) for p in (*net.skeleton.parameters(), *net.weights.parameters())}


def test_a_trained_model_keeps_its_predictions():
    torch.manual_seed(3)
    model = convnet()
    x = torch.randn(64, 1, 4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, 0, 0, :3].argmax(1)).backward()
        optimizer.step()
    model.eval()
    p = ks.predict(model, x, samples=0)
    for convert in CONVERSIONS.values():
        torch.testing.assert_close(ks.predict(convert(model), x, samples=0).probs, p.probs)


def test_the_same_seed_gives_the_same_conversion():
    model = mlp(3, 4, 2)
    nets = []
    for _ in range(2):
        torch.manual_seed(1)
        nets.append(ks.germinate(copy.deepcopy(model), init="glorot"))
    a, b = (net.draw(generator()).weights for net in nets)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_full_resnet_converts_in_under_five_seconds():
    model = ks.models.resnet18(10, in_channels=1)
    started = time.process_time()
    net = ks.germinate(model)
    assert time.process_time() - started < 5  # of all cores together
    assert len(net.weights) == 21
    assert sum(w.num_weights for _, w in net.weights.items()) > 11_000_000

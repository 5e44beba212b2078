"""Conversion: what becomes a distribution, what stays, and that nothing happens to the model that was given."""

import copy
import time

import pytest
import torch
from kinds import KINDS, convnet, generator, mlp
from torch import nn

import kernelseed as ks
from kernelseed.errors import ArgumentError, ArgumentTypeError

CONVERSIONS = {
    "germinate": lambda model, **kwargs: ks.germinate(model, 1.0, over="weights", **kwargs),
    "fixed": lambda model, **kwargs: ks.germinate(model, 1.0, fixed=True, **kwargs),
    "bayesianize": ks.bayesianize,
}
WEIGHT_NORMS = [
    pytest.param(nn.utils.weight_norm, "weight_g", "weight_v", id="hook"),
    pytest.param(
        nn.utils.parametrizations.weight_norm,
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
        id="parametrization",
    ),
]
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


@pytest.mark.parametrize("kind", ["conv2d", "transposed2d", "embedding", "attention_apart", "lstm", "bare", "tied"])
def test_the_net_you_give_is_the_net_you_start_from(kind):
    model, x = KINDS[kind].make().double().eval(), KINDS[kind].inputs(torch.float64)
    for convert in CONVERSIONS.values():
        net = convert(model)
        assert isinstance(net, ks.BayesianModule)
        torch.testing.assert_close(net(*x), model(*x), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["conv2d", "lstm", "tied"])
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
    net = ks.germinate(model, over="weights")
    net.train()(torch.randn(8, 1, 4, 4))
    assert int(model[1].num_batches_tracked) == 0
    assert int(net.skeleton[1].num_batches_tracked) == 1
    with torch.no_grad():
        net.skeleton[1].weight.zero_()
    assert model[1].weight.all()


def test_modes_are_kept():
    model = convnet()
    model[1].eval()
    net = ks.germinate(model, over="weights")
    assert net.training
    assert [m.training for m in net.skeleton.modules()] == [m.training for m in model.modules()]
    assert not ks.germinate(model.eval(), over="weights").training


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
        plain = {name for name, _ in net.skeleton.named_parameters()}
        assert plain == {name for name, _ in model.named_parameters()} - {"0.weight", "3.1.weight"}


@pytest.mark.parametrize(("normalise", "magnitude", "direction"), WEIGHT_NORMS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")  # torch's own, about the older of the two
def test_magnitudes_of_weight_norm_stay_plain_and_its_directions_learn(normalise, magnitude, direction):
    model = nn.Sequential(normalise(nn.Linear(3, 4)), nn.ReLU(), normalise(nn.Conv1d(1, 2, 3)))
    x = torch.randn(6, 1, 3)
    model(x)  # the older kind leaves its weight, and the graph of it, in the module
    net = ks.germinate(model, over="weights")
    assert list(net.weights) == [f"0.{direction}", f"2.{direction}"]
    assert {"0.bias", f"0.{magnitude}", "2.bias", f"2.{magnitude}"} == dict(net.skeleton.named_parameters()).keys()
    torch.testing.assert_close(net.eval()(x), model(x))  # their ranks are full
    optimizer = torch.optim.Adam(net.train().parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        losses.append((net(x) - 1).square().mean())
        losses[-1].backward()
        assert all(p.grad is not None for p in net.parameters())
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    draw = net.eval().draw()
    torch.testing.assert_close(ks.collapse(net, draw)(x), draw(x))


def test_where_may_choose_a_magnitude():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    net = ks.bayesianize(model, where=lambda name, p: name.endswith("original0"))
    assert list(net.weights) == ["parametrizations.weight.original0"]


def test_a_lazy_module_has_to_see_a_batch_first():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))
    for convert in CONVERSIONS.values():
        with pytest.raises(ks.errors.ArgumentError, match=r"run one batch through it first: model\(x\)\.$") as caught:
            convert(model)
        assert "\n" not in str(caught.value)
        assert "0.weight" in str(caught.value)
    model(torch.randn(2, 3))
    assert list(ks.germinate(model, over="weights").weights) == ["0.weight", "2.weight"]


def test_where_is_asked_about_names_and_parameters():
    asked = []

    def where(name, parameter):
        asked.append((name, tuple(parameter.shape)))
        return parameter.shape[0] == 5

    net = ks.germinate(mlp(3, 5, 2), where=where, over="weights")
    assert asked == [("0.weight", (5, 3)), ("2.weight", (2, 5))]
    assert list(net.weights) == ["0.weight"]
    assert net.skeleton[2].weight.shape == (2, 5)


def test_where_may_choose_a_normalisation_weight_and_biases_for_mean_field():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((3, 4)))
    assert list(ks.germinate(model, where=lambda name, p: name == "1.weight", over="weights").weights) == ["1.weight"]
    everything = ks.bayesianize(model, where=lambda name, p: True)
    assert list(everything.weights) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert not list(everything.skeleton.parameters())
    draw = everything.draw()
    assert draw(torch.randn(2, 3, 4)).shape == (2, 3, 4)
    assert draw.num_weights == count(model)
    assert list(ks.germinate(model, where=lambda name, p: True, over="weights").weights) == [
        "0.weight",
        "1.weight",
        "1.bias",
    ]


def test_a_layer_may_have_the_name_of_a_method():
    names = ("keys", "items", "names", "aliases", "values", "get", "seed", "mean", "rho", "shape", "weight")
    model = nn.Module()
    for name in names:
        model.add_module(name, nn.Linear(2, 2))
    net = ks.germinate(model, over="weights")
    assert list(net.weights) == [f"{name}.weight" for name in names]
    for name in names:
        assert net.weights[f"{name}.weight"].moments().mean.shape == (2, 2)
    ks.germinate(model, over="weights").load_state_dict(net.state_dict())


# --- tied weights ----------------------------------------------------------------------------------------------


def test_tied_weights_are_one_distribution_under_two_names():
    net = ks.germinate(KINDS["tied"].make(), over="weights")
    assert list(net.weights) == ["embedding.weight"]
    assert net.weights["output.weight"] is net.weights["embedding.weight"]
    assert "output.weight" in net.weights
    assert len(net.weights) == 1
    draw = net.draw()
    assert draw.weights["output.weight"] is draw.weights["embedding.weight"]
    assert draw.num_weights == 28
    assert not any(key.startswith("weights.output") for key in net.state_dict())
    plain = ks.collapse(net)
    assert plain.output.weight is plain.embedding.weight
    by_name = ks.bayesianize(KINDS["tied"].make(), where=lambda name, p: name == "embedding.weight")
    assert by_name.skeleton.output.weight is None


def test_a_tied_weights_kl_counts_once():
    net = ks.bayesianize(KINDS["tied"].make())
    prior = ks.priors.Gaussian()
    torch.testing.assert_close(net.draw().kl(prior), prior.kl(net.weights["embedding.weight"].mean()))


@pytest.mark.parametrize(("kind", "name"), [("tied", "embedding.weight"), ("twice", "first.weight")])
def test_gradients_come_from_every_place_once(kind, name):
    model, x = KINDS[kind].make().double(), KINDS[kind].inputs(torch.float64)
    net = ks.bayesianize(model)
    model(*x).square().sum().backward()
    net.mean()(*x).square().sum().backward()
    torch.testing.assert_close(net.weights[name].mu.grad, model.get_parameter(name).grad)


def test_a_module_that_stands_twice_is_one_module():
    net, x = ks.germinate(KINDS["twice"].make(), over="weights"), KINDS["twice"].inputs()
    assert list(net.weights) == ["first.weight"]
    assert net.skeleton.first is net.skeleton.second
    net.draw()(*x)
    assert net.skeleton.first.weight is None
    plain = ks.collapse(net)
    assert plain.first is plain.second


# --- what else a parameter may be ------------------------------------------------------------------------------


@every_conversion
def test_what_is_not_trained_has_nothing_to_be_unsure_of(convert):
    model = mlp(3, 4, 2)
    model[0].requires_grad_(False)
    net = convert(model)
    assert list(net.weights) == ["2.weight"]
    assert torch.equal(net.draw().skeleton[0].weight, model[0].weight)
    model.requires_grad_(False)
    with pytest.raises(ArgumentError, match=r"matches no parameter .*0\.weight \(4, 3\), frozen"):
        convert(model)


@every_conversion
def test_frozen_parameters_that_are_chosen_stay_frozen(convert):
    model = mlp(3, 4, 2)
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    net = convert(model, where=lambda name, parameter: name.endswith("weight"))
    assert not any(p.requires_grad for p in net.weights["0.weight"].parameters())
    assert all(p.requires_grad for p in net.weights["2.weight"].parameters())
    assert net.skeleton[0].bias.requires_grad
    assert not net.skeleton[2].bias.requires_grad
    draw = net.draw()
    (draw(torch.randn(4, 3)).sum() + draw.kl(ks.ScaleMixture())).backward()
    assert all(p.grad is None for p in net.weights["0.weight"].parameters())
    assert all(p.grad is not None for p in net.weights["2.weight"].parameters())


@every_conversion
def test_the_dtype_is_the_models(convert):
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert {p.dtype for p in convert(mlp(3, 4, 2).to(dtype)).parameters()} == {dtype}


def test_parameters_without_a_number_stay():
    model = nn.Sequential(nn.Linear(3, 2))
    model.empty = nn.Parameter(torch.empty(0, 4))
    model.whole = nn.Parameter(torch.zeros(2, 2, dtype=torch.int64), requires_grad=False)
    net = ks.germinate(model, over="weights")
    assert list(net.weights) == ["0.weight"]


def test_only_the_mean_field_doubles_what_is_stored():
    model = nn.Linear(8, 8, bias=False)
    assert count(ks.bayesianize(model)) == 2 * 64
    assert count(ks.germinate(model, 0.25, min_rank=1, over="weights")) == 2 * 8 + 2 * 8 * 2 + 1
    assert count(ks.germinate(model, 0.25, min_rank=1, fixed=True)) == 2 * 8 + 8 * 2


def test_converted_parameters_are_gone_from_the_skeleton():
    net = ks.germinate(convnet(), over="weights")
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
        nets.append(ks.germinate(copy.deepcopy(model), init="glorot", over="weights"))
    a, b = (net.draw(generator()).weights for net in nets)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_full_resnet_converts_in_under_five_seconds():
    model = ks.models.resnet18(10, in_channels=1)
    started = time.process_time()
    net = ks.germinate(model, over="weights")
    assert time.process_time() - started < 5  # of all cores together
    assert len(net.weights) == 21
    assert sum(w.num_weights for w in net.weights.values()) > 11_000_000


class Keeps(nn.Module):
    """A model that keeps what it computed, in a list in a dictionary."""

    def __init__(self):
        super().__init__()
        self.layer, self.kept = nn.Linear(4, 4), {"h": []}

    def forward(self, x):
        self.kept["h"].append(self.layer(x))
        return self.kept["h"][-1]


@every_conversion
@pytest.mark.parametrize("parametrization", ["weight_norm", "orthogonal"])
def test_a_recurrent_layer_with_a_parametrised_weight_is_converted(convert, parametrization):
    torch.manual_seed(0)
    layer, x = nn.LSTM(4, 5), torch.randn(3, 2, 4)
    getattr(nn.utils.parametrizations, parametrization)(layer, "weight_hh_l0")
    net = convert(layer)
    torch.testing.assert_close(net.eval()(x)[0], layer(x)[0], atol=1e-4, rtol=0)
    first, second = (net.draw(generator(i)) for i in range(2))
    assert torch.equal(first(x)[0], first(x)[0])
    first(x)[0].sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    assert len(net.weights) == 2  # of inputs and of states
    assert torch.equal(second(x)[0], first(x)[0]) == all(sample.fixed for sample in first.samples.values())
    torch.testing.assert_close(ks.collapse(net)(x)[0], net.mean()(x)[0])


@every_conversion
def test_the_padding_of_an_embedding_is_zero_in_every_draw_and_stays_so(convert, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 6, padding_idx=3), nn.Flatten(), nn.Linear(24, 2))
    net, x = convert(model), torch.tensor([[1, 3, 2, 3], [3, 5, 3, 7]])
    loss, optimizer = ks.ELBO(2), torch.optim.Adam(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(net.draw(), x, torch.tensor([0, 1])).loss.backward()
        optimizer.step()
    ks.save(net, tmp_path / "net")
    for one in (net.draw(), net.mean(), net.posterior().draw(), ks.load(tmp_path / "net", model).draw()):
        assert not one.weights["0.weight"][3].any()
        assert (one.weights["0.weight"][[0, 1, 2, *range(4, 12)]] != 0).all()
    assert not ks.collapse(net)[0].weight[3].any()


def test_a_padding_row_that_is_not_zero_or_is_shared_with_a_layer_is_a_row_like_others():
    filled, tied = (
        nn.Embedding(12, 6, padding_idx=3),
        nn.Sequential(nn.Embedding(12, 6, padding_idx=3), nn.Linear(6, 12)),
    )
    nn.init.ones_(filled.weight)
    tied[1].weight = tied[0].weight
    for model in (filled, tied):
        assert all(type(weight) is ks.MeanField for weight in ks.bayesianize(model).weights.values())


@every_conversion
def test_sparse_gradients_are_refused_before_anything_is_made(convert):
    for kind in (nn.Embedding, nn.EmbeddingBag):
        with pytest.raises(ArgumentError, match=r"0\.weight is of an embedding with sparse=True, .* sparse=False"):
            convert(nn.Sequential(kind(20, 4, sparse=True), nn.Linear(4, 2)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_compiled_model_is_refused_and_the_network_may_be_compiled():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    for made in (torch.compile(model, backend="eager"), nn.Sequential(torch.jit.script(nn.Linear(4, 4)))):
        with pytest.raises(ArgumentTypeError, match=r"which calls what was compiled .*; convert the model first"):
            ks.germinate(made)
    net, x = ks.germinate(model), torch.randn(5, 4)
    expected = net.draw(generator())(x)
    net.skeleton.compile(backend="eager")
    assert torch.equal(net.draw(generator())(x), expected)


@every_conversion
def test_what_a_forward_left_in_lists_is_no_obstacle(convert):
    net = convert(Keeps())
    net.draw()(torch.randn(2, 4)).sum().backward()
    for copied in (ks.collapse(net), ks.prune(net, 0.5, "magnitude").skeleton):
        assert not copied.kept["h"][0].requires_grad
    for method in ("baseline", "ensemble", "vadam"):
        model = Keeps()
        model(torch.randn(2, 4))
        ks.methods.make(method).build(model)

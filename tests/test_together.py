"""Weights drawn together are those drawn one by one, in few operations; so are draws that run together."""

import importlib.util
from functools import partial
from pathlib import Path

import pytest
import torch
from kinds import generator, mlp, trained
from torch import nn

import kernelseed as ks
from kernelseed.core.joint import PartSample
from kernelseed.core.known_layers import ELEMENTWISE
from kernelseed.core.network import Draw
from kernelseed.core.stacked import EachDraw
from kernelseed.core.values import Values
from kernelseed.fast import Costs, assuming, flat, kernels

PRIOR = ks.ScaleMixture()
AT_ONCE, ONE_BY_ONE = Costs(convolution=1, product=1, call=1), Costs(convolution=1, product=1, byte=1)
X = torch.randn(5, 6, generator=generator())


class OneDeviation(ks.WeightDistribution):
    """A user's distribution, which knows nothing of being drawn together."""

    def __init__(self, weight):
        super().__init__()
        self.shape = weight.shape
        self.mu = nn.Parameter(weight.clone())
        self.std = nn.Parameter(weight.new_full((1,), 0.1))

    def moments(self):
        return ks.Gaussian(self.mu, self.std.expand(self.shape))

    def spec(self):
        return {"shape": list(self.shape)}

    @classmethod
    def from_spec(cls, spec):
        return cls(torch.empty(spec["shape"]))


class WithASampleOfItsOwn(OneDeviation):
    def sample(self, noise):
        return ks.Gaussian(self.mu + 1, self.std.expand(self.shape)).sample(noise)


class OtherSeed(ks.KernelSeed):
    """A subclass that decodes in another way must not be germinated in a batch."""

    def decoded(self):
        gaussian = super().decoded()
        return type(gaussian)(gaussian.mean + 1, gaussian.rho, gaussian.shape, gaussian.swapped)


def other_seed(weight):
    return OtherSeed(torch.randn(2, max(weight.shape)), torch.randn(min(weight.shape), 2), -2.0, weight.shape)


def mixed():
    """Kernel seeds of equal shapes and of others, and one of every other kind."""
    torch.manual_seed(0)
    model = mlp(*[6] * 5, 7, 5, 4, 5, 3, 4)
    seeds = ks.germinate(model, 0.5, min_rank=2, over="weights").weights
    names = iter(seeds)  # in the order in which weights are converted
    own = {
        "10.weight": ks.MeanField,
        "12.weight": OneDeviation,
        "14.weight": WithASampleOfItsOwn,
        "2.weight": other_seed,
        "16.weight": lambda w: ks.germinate(nn.Linear(5, 3), 0.5, over="factors").weights["weight"],
        "18.weight": lambda w: ks.germinate(nn.Linear(3, 4), 0.5, fixed=True).weights["weight"],
    }

    def make(weight):
        name = next(names)
        return own[name](weight) if name in own else seeds[name]

    return trained(ks.convert(model, make))


def one_by_one(net, seed):
    noise = ks.Noise.new(generator(seed))
    return net.as_draw({name: w.sample(noise.for_weight(i)) for i, (name, w) in enumerate(net.weights.items())})


def results(net, draw, prior=PRIOR):
    kl = draw.kl(prior)
    loss = draw(X.to(kl.dtype)).square().sum() + kl
    return [loss, kl, draw.num_weights, *draw.weights.values(), *torch.autograd.grad(loss, list(net.parameters()))]


@pytest.mark.parametrize("prior", [PRIOR, ks.priors.Gaussian(0.5, 0.1)], ids=["mixture", "gaussian"])
@pytest.mark.parametrize("cached", [2**17, 100], ids=["one block", "blocks"])
def test_weights_drawn_together_are_those_drawn_one_by_one(prior, cached, monkeypatch):
    monkeypatch.setattr(flat, "CACHED", cached)
    net = mixed().double()
    together, alone = net.draw(generator(1)), one_by_one(net, 1)
    assert sum(isinstance(part, PartSample) for sample in together.samples.values() for part in sample.parts) >= 6
    torch.testing.assert_close(results(net, together, prior), results(net, alone, prior))
    torch.testing.assert_close(net.posterior().draw(generator(1)).weights["0.weight"], alone.weights["0.weight"])
    for name, sample in together.samples.items():
        other = alone.samples[name]
        torch.testing.assert_close(sample.source.mean, other.source.mean)
        if isinstance(sample, PartSample):
            torch.testing.assert_close((sample.noise, sample.source.std), (other.noise, other.source.std))
            torch.testing.assert_close(sample.kl(prior), other.kl(prior))


def test_a_second_backward_pass_still_says_what_to_do():
    net = ks.bayesianize(mlp(6, 5, 4)).double()
    draw = net.draw()
    draw(X.double()).sum().backward()
    with pytest.raises(ks.errors.GraphError, match="a second time"):
        draw(X.double()).sum().backward()


def test_a_draw_of_some_of_the_weights_has_their_kl_alone():
    net = ks.bayesianize(mlp(6, 5, 4, 3)).double()
    draw = net.draw(generator(1))
    some = {name: draw.samples[name] for name in ("0.weight", "4.weight")}
    expected = sum(one_by_one(net, 1).samples[name].kl(PRIOR) for name in some)
    torch.testing.assert_close(net.as_draw(some).kl(PRIOR), expected)


def test_a_prior_of_ones_own_sees_every_weight_in_its_shape():
    class ByFanIn:
        def __init__(self):
            self.shapes = []

        def kl(self, sample):
            self.shapes.append(sample.value.shape)
            return sample.log_prob().sum() * sample.value.shape[1]

    prior, net = ByFanIn(), ks.bayesianize(mlp(6, 5, 4)).double()
    kl = net.draw(generator(1)).kl(prior)
    assert prior.shapes == [(5, 6), (4, 5)]
    torch.testing.assert_close(kl, one_by_one(net, 1).kl(prior))


def test_what_a_draw_costs_grows_little_with_the_network():
    path = Path(__file__).parent.parent / "benchmarks" / "operations.py"
    spec = importlib.util.spec_from_file_location("operations", path)
    counts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(counts)
    for convert, most, views_each in (
        (partial(ks.germinate, over="weights"), (115, 68), 6),
        (ks.bayesianize, (91, 57), 6),
    ):
        (all_few, few), (all_many, many) = (counts.of_a_draw(convert(mlp(*[8] * n))) for n in (4, 14))
        assert all_few <= most[0]
        assert few == many <= most[1]  # what computes something is the same for any number of equal layers
        assert all_many - all_few <= 10 * views_each


# --- draws that run together -------------------------------------------------------------------------------------


class Net(nn.Module):
    """A perceptron, with something in its forward that vmap can't take, or must not."""

    def __init__(self, extra=lambda net, x: x):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.extra, self.seen, self.kept = extra, [], {"last": None}

    def forward(self, x):
        return {"logits": self.last(self.extra(self, self.norm(self.first(x)).relu()))}


def counting(net, x):
    net.calls += 1
    return x


def remembering(net, x):
    net.seen.append(x)
    return x


def keeping(net, x):
    net.kept["last"] = x
    return x


def assigning(net, x):
    net.last_input = x
    return x


def branching(net, x):
    return -x if x.sum() > 0 else x


def noisy(net, x):
    return nn.functional.dropout(x, 0.5)


def wrong(net, x):
    return x.detach().numpy() * 0 + 1 if False else torch.tensor(x.detach().numpy())


def draws(net, count=4):
    posterior = net.eval().posterior()
    with torch.no_grad():
        return [posterior.draw(generator(i)).weights_only() for i in range(count)]


@torch.no_grad()
def test_small_networks_run_their_draws_at_once(monkeypatch):
    net = trained(ks.germinate(Net(), 0.5, min_rank=2, over="weights"))
    made = draws(net)
    expected = [draw(X)["logits"] for draw in made]
    monkeypatch.setattr(Net, "forward", counted := Counted(Net.forward))
    ensemble = EachDraw(made)
    for calls in (2, 3):  # the first batch is also run by one draw alone, to compare
        found = [output["logits"] for output in ensemble(X)]
        torch.testing.assert_close(found, expected)
        assert counted.calls == calls


class Counted:
    def __init__(self, forward):
        self.forward, self.calls = forward, 0

    def __get__(self, owner, _):
        def call(*args):
            self.calls += 1
            return self.forward(owner, *args)

        return call


@torch.no_grad()
@pytest.mark.parametrize("extra", [counting, remembering, keeping, assigning, branching, noisy, wrong])
def test_what_vmap_cannot_take_runs_one_by_one(extra):
    net = trained(ks.germinate(Net(extra), 0.5, min_rank=2, over="weights"))
    made, ensemble = draws(net), None
    for _ in range(2):
        torch.manual_seed(0)
        expected = [draw(X)["logits"] for draw in made]
        ensemble = ensemble or EachDraw(made)
        before, seen = net.skeleton.calls.clone(), len(net.skeleton.seen)
        torch.manual_seed(0)
        found = [output["logits"] for output in ensemble(X)]
        assert ensemble._tensors is None
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        if extra is counting:
            assert net.skeleton.calls - before == len(made)
        assert len(net.skeleton.seen) - seen == (len(made) if extra is remembering else 0)
        if extra is keeping:
            assert not torch._C._functorch.is_batchedtensor(net.skeleton.kept["last"])


@torch.no_grad()
def test_large_networks_and_convolutions_run_one_by_one(monkeypatch):
    convolution = nn.Sequential(nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    assert EachDraw(draws(ks.germinate(convolution, over="weights")))._tensors is None
    net = ks.germinate(Net(), over="weights")
    with assuming(ONE_BY_ONE):
        assert EachDraw(draws(net))._tensors is None
    small = EachDraw(draws(net))
    assert small._tensors is not None
    monkeypatch.setattr(torch.func, "vmap", None)
    with assuming(ONE_BY_ONE):
        assert len(small(X)) == 4
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            small(X[:, :4])


def test_predict_has_the_same_result_either_way(monkeypatch):
    net, x = trained(ks.germinate(Net(), 0.5, min_rank=2, over="weights")), torch.randn(20, 6)
    likelihood = ks.likelihoods.Categorical()
    monkeypatch.setattr(
        likelihood, "predictive", lambda outs, of=likelihood.predictive: of([o["logits"] for o in outs])
    )
    found = []
    for costs in (AT_ONCE, ONE_BY_ONE):
        with assuming(costs):
            found.append(ks.predict(net, x, 5, likelihood=likelihood, update_bn=x, batch_size=7).probs)
    torch.testing.assert_close(*found)


# --- draws that are made together, and layers that are known -------------------------------------------------------


def samples_of(net, how, count=3, seed=1):
    with torch.no_grad(), assuming(how):
        return [draw.weights for draw in net.posterior().draws(count, generator(seed))]


@pytest.mark.parametrize("make", [mixed, lambda: trained(ks.germinate(nn.Conv2d(30, 50, 3), over="factors"))])
def test_draws_of_weights_alone_are_those_with_a_kl(make, monkeypatch):
    net = make()
    assert Values.supports(net.posterior().decoded)
    at_once, one_by_one = samples_of(net, AT_ONCE), samples_of(net, ONE_BY_ONE)
    posterior, same = net.posterior(), generator(1)
    expected = [posterior.draw(same).weights_only().weights for _ in range(3)]
    torch.testing.assert_close(at_once, expected)
    torch.testing.assert_close(one_by_one, expected)
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert not Values.supports(net.posterior().decoded)
    torch.testing.assert_close(samples_of(net, AT_ONCE), expected, rtol=1e-4, atol=1e-5)


def test_only_gaussians_in_float32_are_drawn_so():
    net = trained(ks.germinate(mlp(6, 5, 4), over="weights"))
    pruned = ks.prune(net, 0.5)
    for other in (ks.germinate(mlp(6, 5, 4), over="weights").double(), pruned):
        assert not Values.supports(other.posterior().decoded)
        at_once = samples_of(other, AT_ONCE)
        same = generator(1)
        torch.testing.assert_close(at_once, [other.posterior().draw(same).weights for _ in range(3)])


LAYERS = {
    "perceptron": lambda: ks.models.mlp(3, 2, (3, 1), widths=[5]),
    "activations": lambda: nn.Sequential(
        nn.LeakyReLU(inplace=True),
        nn.Linear(6, 5),
        *(kind(5) if kind is nn.LayerNorm else kind() for kind in ELEMENTWISE),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 4, bias=False)),
    ),
    "axes": lambda: nn.Sequential(nn.Linear(6, 4), nn.Flatten(), nn.Linear(4, 3), nn.Flatten(0), nn.Identity()),
    "one": lambda: nn.Linear(6, 3),
    "noise": lambda: ks.models.WithNoise(mlp(6, 4, 2)),
}


LEAVES = ("weight", "bias")


def tied():
    """The same layer and the same activation in several places."""
    torch.manual_seed(0)
    layer, relu = nn.Linear(6, 6), nn.ReLU()
    return nn.Sequential(layer, relu, layer, relu, nn.Linear(6, 3))


@torch.no_grad()
@pytest.mark.parametrize("where", ["weight", "weight and bias"])
@pytest.mark.parametrize("name", [*LAYERS, "tied"])
def test_known_layers_compute_what_each_draw_computes(name, where, monkeypatch):
    torch.manual_seed(0)
    model = tied() if name == "tied" else LAYERS[name]()
    least_axes = 2 if where == "weight" else 1
    linear = {f"{n}.{leaf}".strip(".") for n, m in model.named_modules() if type(m) is nn.Linear for leaf in LEAVES}
    net = trained(ks.convert(model, ks.MeanField, lambda n, m: n in linear, least_axes=least_axes))
    made = list(net.eval().posterior().draws(4, generator(2)))
    x = X.unflatten(1, (2, 3, 1)) if name == "perceptron" else X
    expected = [draw(x.clone()) for draw in made]
    monkeypatch.setattr(torch.func, "vmap", None)
    given = x.clone()
    torch.testing.assert_close(EachDraw(made)(given), expected)
    assert torch.equal(given, x)
    with pytest.raises(RuntimeError):
        EachDraw(made)(X[:, :2])


@torch.no_grad()
@pytest.mark.parametrize("over", ["factors", "channels"])
@pytest.mark.parametrize("delta", [0.2, 1.0], ids=["thin", "dense"])
@pytest.mark.parametrize("name", [*LAYERS, "tied"])
def test_known_layers_of_factors_compute_what_each_draw_computes(name, delta, over, monkeypatch):
    torch.manual_seed(0)
    net = trained(ks.germinate(tied() if name == "tied" else LAYERS[name](), delta, min_rank=1, over=over)).eval()
    x = (X.unflatten(1, (2, 3, 1)) if name == "perceptron" else X).repeat(20, *[1] * (3 if name == "perceptron" else 1))
    with assuming(AT_ONCE):
        made = list(net.posterior().draws(4, generator(2)))
        expected = [draw(x.clone()) for draw in made]
        torch.testing.assert_close([draw.weights for draw in made], samples_of(net, ONE_BY_ONE, 4, seed=2))
        if name != "activations":  # it changes its input, and vmap's result is compared with that of one draw
            by_vmap = EachDraw(made)
            by_vmap._layers = None
            torch.testing.assert_close(by_vmap(x.clone()), expected)
            assert by_vmap._checked
        monkeypatch.setattr(torch.func, "vmap", None)
        at_once = EachDraw(made)
        assert at_once._layers is not None
        monkeypatch.setattr(Draw, "__call__", None)  # not one by one
        torch.testing.assert_close(at_once(x.clone()), expected)
        layers = [stack for _, stack, _ in at_once._layers._layers if stack is not None]
        assert {len(stack.matrices(len(x))) for stack in layers} == {1 if delta == 1 else 2}


@torch.no_grad()
@pytest.mark.parametrize("change", ["hook", "forward", "train", "other layer", "drawn norm"])
def test_what_is_not_known_is_not_run_as_if_it_were(change):
    model = mlp(6, 5, 3)
    if change == "other layer":
        model.append(nn.Softmax(1))
    if change == "drawn norm":
        model.append(nn.LayerNorm(3))
    net = ks.convert(model, ks.MeanField, lambda name, _: True, least_axes=1).eval()
    if change == "hook":
        net.skeleton[1].register_forward_hook(lambda layer, x, output: -output)
    if change == "forward":
        net.skeleton[1].forward = lambda x: -x
    if change == "train":
        net.skeleton[1].train()
    made = list(net.posterior().draws(4, generator(2)))
    assert EachDraw(made)._layers is None
    torch.testing.assert_close(EachDraw(made)(X), [draw(X) for draw in made])

"""Prediction: averages that are what they say, whatever the batches, and nothing left behind."""

import inspect
import itertools
import sys
import typing
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from kinds import convnet, generator, mlp, trained
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

import kernelseed as ks
from kernelseed import fast
from kernelseed.core import prediction
from kernelseed.core.dropout import DropoutPass
from kernelseed.core.network import Posterior
from kernelseed.core.prediction import predict
from kernelseed.core.seeds import generator_for
from kernelseed.errors import ArgumentTypeError

X = torch.randn(23, 3, generator=generator())
IMAGES = torch.randn(23, 1, 4, 4, generator=generator())
LABELS = torch.arange(23) % 4


def bayesian():
    """A net whose draws differ visibly."""
    return trained(ks.germinate(mlp(3, 6, 4), 0.5, min_rank=2, over="weights"))


def dropping():
    return nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Dropout(0.4), nn.Linear(40, 40), nn.Dropout(0.1), mlp(40, 4))


def images():
    """Convolution and BatchNorm, with statistics that are not the initial ones."""
    net = trained(ks.germinate(convnet(), 0.5, min_rank=2, over="weights"))
    for _ in range(3):
        net.train()(torch.randn(20, 1, 4, 4) + 1)
    return net


def draws_of(net, samples, seed=0, member=0):
    """What `predict` is to average, by the network itself."""
    g = generator_for("prediction", seed, member)
    return [net.draw(g) for _ in range(samples)]


def same(a, b):
    for name in ("probs", "expected_entropy", "variance"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name))


# --- the average -----------------------------------------------------------------------------------------------


def test_no_samples_is_the_posterior_mean():
    net = bayesian()
    p = ks.predict(net, X, samples=0)
    torch.testing.assert_close(p.probs, ks.collapse(net).eval()(X).softmax(1).detach())
    assert p.variance.abs().max() == 0
    assert p.mutual_information.abs().max() < 1e-6


def test_samples_are_draws_of_the_network_averaged_after_the_softmax():
    net = bayesian()
    each = torch.stack([draw(X).softmax(1) for draw in draws_of(net, 6, seed=5)]).detach()
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
    p = ks.predict(net, x, samples=1000)
    error = (p.variance[0, 1] / 1000).sqrt().item()
    assert abs(p.probs[0, 1].item() - exact) < 5 * error
    assert error < 0.01


def test_a_plain_module_and_a_fixed_net_have_one_answer():
    model = mlp(3, 6, 4)
    for net in (model, ks.germinate(model, 1.0, fixed=True)):
        p = ks.predict(net, X, samples=10)
        torch.testing.assert_close(p.probs, model(X).softmax(1).detach())
        assert p.variance.max() == 0


def test_a_network_inside_a_plain_module_has_its_posterior_mean():
    net = bayesian()
    same(ks.predict(nn.Sequential(nn.Identity(), net), X, samples=0), ks.predict(net, X, samples=0))


def test_one_class_is_certain():
    p = ks.predict(trained(ks.germinate(mlp(3, 6, 1), over="weights")), X, samples=3)
    assert torch.equal(p.probs, torch.ones(23, 1))
    assert p.entropy.abs().max() == p.mutual_information.abs().max() == p.variance.abs().max() == 0


def test_class_axis_one_of_many():
    p = ks.predict(trained(ks.germinate(nn.Conv2d(1, 3, 3, padding=1), over="weights")), IMAGES, samples=4)
    assert p.probs.shape == p.variance.shape == (23, 3, 4, 4)
    assert p.entropy.shape == p.expected_entropy.shape == p.label.shape == (23, 4, 4)
    torch.testing.assert_close(p.probs.sum(1), torch.ones(23, 4, 4))


def test_extreme_logits_stay_probabilities():
    p = ks.predict(nn.Identity(), 1e4 * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]))
    assert torch.equal(p.probs, torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    assert p.entropy.abs().max() == 0


@pytest.mark.parametrize("noise", [0.3, "output"])
def test_regression_has_a_mean_and_two_variances(noise):
    net = bayesian()
    outputs = torch.stack([draw(X) for draw in draws_of(net, 5, seed=2)]).detach()
    means, variances = outputs, torch.full_like(outputs, 0.09)
    if noise == "output":
        means, variances = outputs[..., :2], nn.functional.softplus(outputs[..., 2:]).square()
    p = ks.predict(net, X, 5, likelihood=ks.likelihoods.Gaussian(noise), seed=2, batch_size=6)
    assert isinstance(p, ks.Regression)
    torch.testing.assert_close(p.mean, means.mean(0))
    torch.testing.assert_close(p.epistemic, means.var(0, correction=0))
    torch.testing.assert_close(p.aleatoric, variances.mean(0))
    torch.testing.assert_close(p.variance, p.epistemic + p.aleatoric)
    torch.testing.assert_close(p.std, p.variance.sqrt())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads came with Python 3.11")
def test_the_likelihood_types_the_prediction():
    plain, given = typing.get_overloads(inspect.unwrap(predict))
    assert typing.get_type_hints(plain)["return"] is ks.Classification
    hints = typing.get_type_hints(given)
    assert typing.get_args(hints["likelihood"]) == (hints["return"],)
    for kind, result in ((ks.likelihoods.Categorical, ks.Classification), (ks.likelihoods.Gaussian, ks.Regression)):
        assert [typing.get_args(base) for base in kind.__orig_bases__] == [(result,)]
    for overload in (plain, given):
        assert list(inspect.signature(overload).parameters) == list(inspect.signature(predict).parameters)
    assert (Path(ks.__file__).parent / "py.typed").exists()  # or type checkers would not look


# --- whatever the batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [bayesian, dropping])
def test_the_same_result_for_any_batch_size(make):
    net = make()
    whole = ks.predict(net, X, 3, batch_size=1000)
    assert whole.variance.max() > 0
    for batch_size in (1, 7, 22, 23):
        same(ks.predict(net, X, 3, batch_size=batch_size), whole)


ONE_INPUT = {
    "a loader of pairs": DataLoader(TensorDataset(X, LABELS), batch_size=5),
    "a loader of inputs": DataLoader(X, batch_size=9),
    "lists": [[X[:10], LABELS[:10]], [X[10:], LABELS[10:]]],
    "inputs alone in a tuple": [(x,) for x in X.split(4)],
    "mappings": [{"input": x, "labels": None} for x in X.split(4)],
}


@pytest.mark.parametrize("data", ONE_INPUT.values(), ids=ONE_INPUT)
def test_tensors_loaders_and_mappings_are_the_same_data(data):
    for net in (bayesian(), dropping()):
        same(ks.predict(net, data, samples=3), ks.predict(net, X, samples=3))


class TwoInputs(nn.Module):
    """A model of two inputs, each of which matters, with statistics of both."""

    def __init__(self):
        super().__init__()
        self.mix, self.norm = nn.Bilinear(3, 3, 4), nn.BatchNorm1d(4)

    def forward(self, first, second):
        return self.norm(self.mix(first, second))


X2 = X.flip(0)
Batch = namedtuple("Batch", "first second")
TWO_INPUTS = {
    "(x1, x2, y)": DataLoader(TensorDataset(X, X2, LABELS), batch_size=23),
    "((x1, x2), y)": [((X, X2), LABELS)],
    "[[x1, x2], y]": [[[X, X2], LABELS]],
    "a named tuple": [(Batch(X, X2), LABELS)],
    "a mapping": [{"first": X, "second": X2, "label": LABELS}],
}


@pytest.mark.parametrize("data", TWO_INPUTS.values(), ids=TWO_INPUTS)
def test_every_input_of_a_batch_reaches_the_model(data):
    net = trained(ks.bayesianize(TwoInputs()))
    draws = draws_of(net.eval(), 3)
    each = torch.stack([draw(X, X2).softmax(1) for draw in draws]).detach()
    torch.testing.assert_close(ks.predict(net, data, samples=3).probs, each.mean(0))
    plains = [updated_by_hand(ks.collapse(net, draw), [(X, X2)]) for draw in draws]
    each = torch.stack([plain(X, X2).softmax(1) for plain in plains]).detach()
    torch.testing.assert_close(ks.predict(net, data, samples=3, update_bn=data).probs, each.mean(0))


def test_a_packed_sequence_is_one_input():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            return self.gru(x)[1][0]

    net, sequences = trained(ks.bayesianize(Last())), torch.randn(5, 6, 3)
    packed = pack_padded_sequence(sequences, torch.full((5,), 6), batch_first=True)
    for data in ([packed], [(packed, LABELS[:5])]):
        same(ks.predict(net, data, samples=2), ks.predict(net, sequences, samples=2))
    loss, draw, y = ks.ELBO(5), net.draw(), LABELS[:5]
    torch.testing.assert_close(loss(draw, packed, y).loss, loss(draw, sequences, y).loss)


def test_inputs_go_where_the_weights_are():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 4))

        def forward(self, x):
            self.seen = x
            return torch.zeros(5, 4)

    net = ks.bayesianize(Remembers()).to("meta")
    assert not list(net.skeleton.parameters())  # so that the weights alone say where
    ks.predict(net, X[:5])
    assert net.skeleton.seen.is_meta
    packed = pack_padded_sequence(torch.randn(5, 6, 3), torch.full((5,), 6), batch_first=True)
    ks.predict(net, [packed])
    assert net.skeleton.seen.data.is_meta
    assert net.skeleton.seen.batch_sizes.is_cpu  # as PyTorch wants it


def test_the_seed_decides():
    for net in (bayesian(), dropping()):
        one, two = (ks.predict(net, X, samples=3, seed=seed).probs for seed in (0, 1))
        assert not torch.allclose(one, two)
        torch.manual_seed(99)
        state = torch.get_rng_state()
        assert torch.equal(ks.predict(net, X, samples=3, seed=0).probs, one)
        assert torch.equal(state, torch.get_rng_state())


def test_each_weight_is_decoded_and_each_draw_made_once_for_the_whole_data_set(monkeypatch):
    net, decoded = bayesian(), []
    decode = ks.KernelSeed.decoded
    monkeypatch.setattr(ks.KernelSeed, "decoded", lambda self: decoded.append(self) or decode(self))
    p = ks.predict(net, X[:1].expand(12, 3), samples=4, batch_size=2)
    assert len(decoded) == len(net.weights)
    # The same draws for every batch: equal rows have equal predictions.
    torch.testing.assert_close(p.probs, p.probs[:1].expand(12, 4), rtol=0, atol=1e-6)


class Writes(nn.Module):
    """It centres its input in place."""

    def __init__(self, convolves=False):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 1) if convolves else nn.Identity()
        self.second = nn.Linear(256 if convolves else 16, 4)

    def forward(self, x):
        return self.second(self.first(x.sub_(0.5).div_(0.25)).flatten(1))


@pytest.mark.parametrize("convolves", [False, True], ids=["stacked", "one by one"])
@pytest.mark.parametrize("norm", [False, True], ids=["", "update_bn"])
def test_what_a_network_writes_into_its_input_is_not_seen_by_the_next_draw(convolves, norm):
    written = Writes(convolves)
    net = trained(ks.bayesianize(nn.Sequential(written, nn.BatchNorm1d(4)) if norm else written))
    images, other = IMAGES.clone(), IMAGES.flip(0)
    update = other.clone() if norm else None
    found = ks.predict(net, images, 3, update_bn=update)
    assert torch.equal(images, IMAGES)
    assert update is None or torch.equal(update, other)
    draws = [ks.predict(draw, IMAGES.clone(), update_bn=other.clone() if norm else None) for draw in
             net.posterior().draws(3, generator_for("prediction", 0, 0))]  # fmt: skip
    assert torch.allclose(found.probs, torch.stack([p.probs for p in draws]).mean(0), atol=1e-5)


@pytest.mark.parametrize("kind", ["update_bn", "dropout"])
def test_threads_that_predict_with_one_network_get_what_one_alone_gets(kind):
    if kind == "dropout":
        net, given = nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Dropout(0.4), mlp(40, 4)).eval(), {}
        x = X
    else:
        net, x = images().eval(), IMAGES
        given = {"update_bn": IMAGES}
    before = state(net)
    expected = ks.predict(net, x, 4, **given)
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: ks.predict(net, x, 4, **given), range(12)):
            assert torch.allclose(found.probs, expected.probs, atol=1e-6)
    assert state(net) == before


def test_a_number_beside_the_inputs_is_no_axis():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x, scale):
            return self.layer(x) * scale

    net = ks.bayesianize(Scaled())
    found = ks.predict(net, [{"x": X, "scale": torch.tensor(2.0)}], 5)
    wide = ks.predict(net, [{"x": X, "scale": torch.full((len(X), 1), 2.0)}], 5)
    assert torch.allclose(found.probs, wide.probs, atol=1e-6)


def test_an_empty_batch_of_a_loader_is_one_however_many_draws_there_are():
    net = bayesian()
    for samples in (3, 40):
        assert ks.predict(net, [X[:5], X[:0], X[5:]], samples).probs.shape == (23, 4)


def test_a_mean_without_bound_is_no_prediction():
    x = X.clone()
    x[0, :2] = -torch.inf
    with pytest.raises(ks.errors.NonFiniteOutputError, match="NaN or infinity in 2 of 69 places"):
        ks.predict(nn.Identity(), x, likelihood=ks.likelihoods.Gaussian(1.0))
    assert ks.predict(nn.Identity(), x).probs[0].tolist() == [0, 0, 1]  # a class may be ruled out


def test_an_empty_tensor_has_an_empty_prediction():
    for net in (bayesian(), dropping()):
        p = ks.predict(net, X[:0], samples=3)
        assert p.probs.shape == p.variance.shape == (0, 4)
        assert p.entropy.shape == p.label.shape == p.mutual_information.shape == (0,)


# --- more draws than are held at once --------------------------------------------------------------------------


@pytest.fixture
def few_at_once(monkeypatch):
    monkeypatch.setattr(prediction, "DRAWS_AT_ONCE", 3)


MANY = {
    "bayesian": (bayesian, X, {}),
    "dropout": (dropping, X, {}),
    "ensemble": (lambda: [bayesian(), dropping(), mlp(3, 6, 4)], X, {}),
    "a loader": (bayesian, DataLoader(TensorDataset(X, LABELS), batch_size=5), {}),
    "regression": (bayesian, X, {"likelihood": ks.likelihoods.Gaussian("output")}),
    "update_bn": (images, IMAGES, {"update_bn": IMAGES + 1}),
    "update_bn of a loader": (images, IMAGES, {"update_bn": DataLoader(IMAGES + 1, batch_size=23)}),
}


@pytest.mark.parametrize("kind", MANY)
def test_draws_a_few_at_a_time_give_the_same_prediction(kind, monkeypatch):
    make, data, options = MANY[kind]
    net = make()
    whole = ks.predict(net, data, samples=11, **options)
    monkeypatch.setattr(prediction, "DRAWS_AT_ONCE", 3)
    streamed = ks.predict(net, data, samples=11, **options)
    for name, value in vars(whole).items():
        assert getattr(streamed, name).dtype == value.dtype == torch.float32
        torch.testing.assert_close(getattr(streamed, name), value, rtol=2e-6, atol=1e-7)


def test_only_a_few_draws_are_held_however_many_there_are(few_at_once, monkeypatch):
    net, held, most = bayesian(), weakref.WeakSet(), []
    draws = Posterior.draws

    def counted(self, *args):
        for draw in draws(self, *args):
            held.add(draw)
            most.append(len(held))
            yield draw
            del draw

    monkeypatch.setattr(Posterior, "draws", counted)
    ks.predict(net, X, samples=40)
    assert len(most) == 40
    assert max(most) <= 3 + 2  # the one that was looked ahead at, and the one that is being made


@pytest.mark.parametrize("over", ["weights", "factors"])
def test_images_lie_as_a_resnet_is_faster_and_say_the_same(over, monkeypatch):
    net, x = ks.germinate(ks.models.resnet18(3, 1, width=8), over=over), torch.randn(6, 1, 12, 12)
    seen, forward = [], nn.Conv2d.forward

    def watched(self, images):
        seen.append(images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous())
        return forward(self, images)

    monkeypatch.setattr(nn.Conv2d, "forward", watched)
    found = []
    for ratio in (0.5, 1.0):
        seen.clear()
        with fast.assuming(fast.Costs(convolution=1, product=1, channels_last=ratio)):
            found.append(ks.predict(net, x, samples=3).probs)
        assert any(seen) == (ratio < 1)
    torch.testing.assert_close(*found)


def test_the_default_goes_over_the_data_once():
    passes = []

    class Loader:
        def __iter__(self):
            passes.append(1)
            return iter([X])

    ks.predict(bayesian(), Loader(), update_bn=[X])
    assert len(passes) == 1


@pytest.mark.parametrize("name", ["data", "update_bn"])
def test_many_draws_do_not_fit_data_that_is_there_once(few_at_once, name):
    given = {"data": IMAGES, name: iter([IMAGES])}
    with pytest.raises(ks.errors.ArgumentError, match=rf"^{name} is a list_iterator.*once only.*fewer samples\.$"):
        ks.predict(images(), samples=4, **given)
    ks.predict(images(), samples=3, **{**given, name: iter([IMAGES])})


SHUFFLED = {
    "rows": lambda number: [X.roll(number, 0)],
    "batches": lambda number: X.split(4)[number:] + X.split(4)[:number],
    "fewer": lambda number: X[: 24 - 6 * number].split(6),
    "more": lambda number: X[: 12 + 6 * number].split(6),
}


@pytest.mark.parametrize("kind", SHUFFLED)
def test_many_draws_are_not_averaged_over_rows_that_changed_places(few_at_once, kind):
    class Loader:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(SHUFFLED[kind](self.passes))

    with pytest.raises(ks.errors.ArgumentError, match=r"data differs from one pass to the next.*without shuffling"):
        ks.predict(bayesian(), Loader(), samples=4)


# --- nothing left behind ---------------------------------------------------------------------------------------


class Breaks(nn.Module):
    """Raises on its third call, and on no other."""

    def __init__(self):
        super().__init__()
        self.net = convnet(dropout=nn.Dropout(0.2))
        self.calls = []

    def forward(self, x):
        self.calls.append(1)
        if len(self.calls) == 3:
            raise RuntimeError("broken")
        return self.net(x)


def state(net):
    return (
        [m.training for m in net.modules()],
        [getattr(m, "momentum", None) for m in net.modules()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()],
        [(name, value.tolist()) for name, value in net.state_dict().items()],
    )


@pytest.mark.parametrize("convert", [ks.germinate, lambda m: m], ids=["bayesian", "plain"])
@pytest.mark.parametrize("update_bn", [None, [IMAGES[:8], IMAGES[8:16]]], ids=["", "update_bn"])
def test_modes_buffers_and_hooks_are_as_before_also_when_forward_raises(convert, update_bn):
    net = convert(Breaks()).train()
    list(net.modules())[-1].eval()  # a mixture of modes
    before = state(net)
    with pytest.raises(RuntimeError, match="broken"):
        ks.predict(net, IMAGES, 2, batch_size=12, update_bn=update_bn)
    assert state(net) == before
    ks.predict(net, IMAGES, 2, batch_size=12, update_bn=update_bn)
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
    ("layer", "shape"),
    [
        (nn.Dropout(0.5, inplace=True), (40, 6, 3)),
        (nn.Dropout2d(0.5), (40, 6, 3, 3)),
        (nn.Dropout3d(0.5), (40, 6, 2, 2, 2)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_dropout_layers_drop_what_they_say(layer, shape):
    x = torch.ones(shape)
    output = ks.predict(layer, x, samples=1, likelihood=ks.likelihoods.Gaussian(1.0)).mean
    assert set(output.unique().tolist()) == {0.0, 2.0}
    channels = output.flatten(2)
    assert (channels == channels[:, :, :1]).all() == (type(layer) is not nn.Dropout)
    assert not torch.equal(output[0], output[1])
    assert torch.equal(x, torch.ones(shape))


@pytest.mark.parametrize(("layer", "shape"), [(nn.Dropout1d(0.5), (40, 6)), (nn.Dropout3d(0.5), (40, 2, 2, 2))])
def test_an_input_without_a_batch_axis_loses_whole_channels(layer, shape):
    x = torch.ones(shape)
    draw = DropoutPass(nn.Sequential(layer).eval(), 0)
    channels = draw(x).flatten(1)
    assert (channels == channels[:, :1]).all()
    assert set(channels.unique().tolist()) == {0.0, 2.0}


def test_dropout_layers_and_passes_have_masks_of_their_own():
    p = ks.predict(
        nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)),
        torch.ones(1000, 4),
        samples=2,
        likelihood=ks.likelihoods.Gaussian(1.0),
    )
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
    for net, samples in ((nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.0), nn.Linear(5, 4)), 10), (dropping(), 0)):
        torch.testing.assert_close(ks.predict(net, X, samples).probs, net.eval()(X).softmax(1).detach())


# --- BatchNorm -------------------------------------------------------------------------------------------------


def updated_by_hand(plain, batches):
    """Plain PyTorch: reset, average over the batches in train mode, then predict."""
    for m in plain.eval().modules():
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
            m.reset_running_stats()
            m.momentum = None
            m.train()
    with torch.no_grad():
        for batch in batches:
            plain(*batch)
    return plain.eval()


@pytest.mark.parametrize("samples", [0, 3])
def test_update_bn_gives_each_draw_statistics_of_its_own(samples):
    net, batches = images(), [IMAGES[:8], IMAGES[8:15], IMAGES[15:]]
    draws = draws_of(net, samples) or [net.mean()]
    plains = [updated_by_hand(ks.collapse(net, draw), [(batch,) for batch in batches]) for draw in draws]
    expected = torch.stack([plain(IMAGES).softmax(1).detach() for plain in plains]).mean(0)
    before = state(net)
    p = ks.predict(net, IMAGES, samples, update_bn=batches)
    torch.testing.assert_close(p.probs, expected)
    assert state(net) == before
    assert not torch.allclose(p.probs, ks.predict(net, IMAGES, samples).probs)


def test_first_layer_statistics_are_means_and_variances():
    plain = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))
    train = 2 * torch.randn(60, 3) + torch.tensor([1.0, -1.0, 0.0])
    mean, variance = train.mean(0), train.var(0)
    expected = plain[1]((X - mean) / (variance + plain[0].eps).sqrt()).softmax(1).detach()
    torch.testing.assert_close(ks.predict(plain, X, update_bn=train).probs, expected)


def test_a_tensor_for_update_bn_is_cut_into_batches_of_nearly_the_same_size():
    # A last batch of one row has no variance, and one of few rows would count as much as a whole one.
    plain, train = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)), torch.randn(13, 3)
    p = ks.predict(plain, X, update_bn=train, batch_size=6)
    same(p, ks.predict(plain, X, update_bn=[train[:5], train[5:9], train[9:]]))


def test_one_row_left_over_for_update_bn_is_left_out():
    plain, train = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)), torch.randn(9, 3)
    loader = DataLoader(train, batch_size=4)
    same(ks.predict(plain, X, update_bn=loader), ks.predict(plain, X, update_bn=train[:8], batch_size=4))
    with pytest.raises(ks.errors.ArgumentError, match="update_bn has batches of one example"):
        ks.predict(plain, X, update_bn=train.split(1))
    assert plain[0].momentum == 0.1


def test_update_bn_of_dropout_networks_averages_over_masks():
    net = convnet(dropout=nn.Dropout(0.3))
    one = ks.predict(net, IMAGES, samples=3, update_bn=[IMAGES])
    same(ks.predict(net, IMAGES, samples=3, update_bn=[IMAGES], batch_size=5), one)
    assert one.variance.max() > 0
    assert not torch.allclose(one.probs, ks.predict(net, IMAGES, samples=3).probs)


def test_networks_without_batchnorm_have_nothing_to_update():
    net = bayesian()
    same(ks.predict(net, X, update_bn=[X]), ks.predict(net, X))


# --- ensembles -------------------------------------------------------------------------------------------------


def test_a_sequence_is_averaged():
    models = [mlp(3, 6, 4) for _ in range(3)]
    each = torch.stack([model(X).softmax(1) for model in models]).detach()
    for sequence in (models, tuple(models), nn.ModuleList(models)):
        p = ks.predict(sequence, X)
        torch.testing.assert_close(p.probs, each.mean(0))
        torch.testing.assert_close(p.variance, each.var(0, correction=0))


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


def test_members_of_an_ensemble_have_noise_of_their_own():
    net, other = bayesian(), bayesian()
    for members in ([net, other], [net, net]):
        draws = [draw for i, member in enumerate(members) for draw in draws_of(member, 4, member=i)]
        each = torch.stack([draw(X).softmax(1) for draw in draws]).detach()
        p = ks.predict(members, X, samples=4)
        torch.testing.assert_close(p.probs, each.mean(0))
        torch.testing.assert_close(p.variance, each.var(0, correction=0))
        same(ks.predict(members, X, samples=4), p)
    # The network twice is more draws of it, not the same draws twice.
    assert not torch.allclose(ks.predict([net, net], X, samples=1).variance, torch.zeros(23, 4))
    same(ks.predict([net], X, samples=4), ks.predict(net, X, samples=4))


def test_members_of_an_ensemble_have_dropout_masks_of_their_own():
    net = dropping()
    assert ks.predict([net, net], X, samples=1).variance.min() > 0


def test_a_hook_sees_every_draw():
    net, seen = ks.germinate(mlp(3, 8, 2)), []
    net.skeleton[0].register_forward_hook(lambda layer, inputs, output: seen.append(output.clone()))
    ks.predict(net, X, samples=5)
    assert torch.stack(seen).shape == (5, len(X), 8)
    assert len({output.sum().item() for output in seen}) == 5


def test_in_inference_mode_too_inputs_stay_as_they_are():
    net, x = trained(ks.bayesianize(Writes(convolves=False))), IMAGES.clone()
    expected = ks.predict(net, x, 3).probs
    with torch.inference_mode():
        for _ in range(2):
            assert torch.allclose(ks.predict(net, x, 3).probs, expected, atol=1e-6)
    assert torch.equal(x, IMAGES)


def test_in_inference_mode_it_is_the_same():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            self.last = x * 1
            return self.layer(self.last)

    net = ks.germinate(Keeps())
    expected = ks.predict(net, X, samples=5).probs
    with torch.inference_mode():
        assert torch.equal(ks.predict(net, X, samples=5).probs, expected)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, torch.zeros(len(X))), r"data is a tuple of unlike things, which is one batch; give batches: \[data\]"),
        (X.numpy(), r"data is a ndarray of numpy; give torch.from_numpy\(data\)"),
    ],
)
def test_what_looks_like_data_and_is_none_is_named(data, message):
    with pytest.raises(ArgumentTypeError, match=message):
        ks.predict(ks.germinate(mlp(3, 2)), data)

"""Factorised inference is the posterior mean, by fewer multiplications."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import kernelseed as ks
from kernelseed.core import export
from kernelseed.fast.costs import assuming
from kernelseed.fast.thin import MULTIPLICATIONS

LAYERS = {
    "linear": (nn.Linear(30, 20), (4, 30)),
    "linear wide": (nn.Linear(20, 50, bias=False), (4, 20)),
    "conv1d circular": (nn.Conv1d(12, 40, 3, stride=2, padding=1, padding_mode="circular"), (2, 12, 11)),
    "conv2d reflect": (nn.Conv2d(12, 40, 3, stride=2, padding=2, padding_mode="reflect"), (2, 12, 9, 9)),
    "conv2d narrowing": (nn.Conv2d(40, 12, (3, 1), padding="same", bias=False), (2, 40, 6, 6)),
    "conv3d dilated": (nn.Conv3d(20, 12, (1, 2, 3), dilation=2), (2, 20, 6, 6, 8)),
}


@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)
def test_two_thin_layers_equal_the_dense_mean(layer, shape):
    x = torch.randn(shape)
    for fixed in (False, True):
        net = ks.germinate(layer, 0.25, min_rank=1, fixed=fixed)
        thin = ks.factorise(net)
        assert isinstance(thin, nn.Sequential)
        assert len(thin) == 2
        expected = ks.collapse(net)(x)
        torch.testing.assert_close(thin(x), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(net.mean()(x), expected, rtol=1e-4, atol=1e-5)  # a fixed one runs thin by itself
        assert sum(p.numel() for p in thin.parameters()) < sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize(("size", "share"), [({"delta": 0.25}, 0.30), ({}, 0.62)], ids=["quarter", "default"])
def test_the_share_of_a_resnets_multiplications_that_the_readme_says(size, share):
    plain, x = ks.models.resnet18(in_channels=1).eval(), torch.zeros(1, 1, 28, 28)

    def multiplications(model):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(x)
        return counter.get_total_flops()

    thin = ks.factorise(ks.germinate(plain, **size))
    assert multiplications(thin) / multiplications(plain) == pytest.approx(share, abs=0.005)


def test_layers_where_it_would_cost_more_and_other_kinds_stay_dense():
    model = nn.Sequential(
        nn.Linear(16, 16),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.ConvTranspose2d(32, 32, 3),
        nn.Embedding(50, 32),
        nn.GRU(32, 32),
    )
    thin = ks.factorise(ks.germinate(model, 0.25, over="weights"))  # rank 16 of 16: the first is not worth it
    assert [type(layer) for layer in thin] == [type(layer) for layer in model]


def test_a_resnet_is_its_own_class_still_equal_and_mostly_thin():
    model = ks.models.resnet18(10, 1, width=32).eval()
    net = ks.germinate(model, 0.25, over="weights")
    thin, x = ks.factorise(net), torch.randn(3, 1, 28, 28)
    assert type(thin) is type(model)
    assert not thin.training
    with torch.no_grad():
        torch.testing.assert_close(thin(x), net.eval()(x), rtol=1e-4, atol=1e-5)
    pairs = [m for m in thin.modules() if isinstance(m, nn.Sequential) and len(m) == 2 and isinstance(m[1], nn.Conv2d)]
    assert len(pairs) >= 12


def test_layers_that_something_reads_from_outside_stay_dense():
    torch.manual_seed(0)
    encoder = ks.germinate(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), 0.25)
    x = torch.randn(2, 3, 64)
    assert torch.allclose(ks.factorise(encoder).eval()(x), ks.collapse(encoder).eval()(x), atol=1e-5)
    hooked = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    hooked[0].register_forward_hook(lambda layer, given, output: 1 - output)
    net = ks.germinate(hooked, 0.25)
    thin = ks.factorise(net)
    assert [type(layer) for layer in thin] == [nn.Linear, nn.Sequential]
    assert torch.allclose(thin(x), ks.collapse(net)(x), atol=1e-5)


def test_a_layer_in_two_places_is_replaced_in_both():
    shared = nn.Linear(64, 64)
    net = ks.germinate(nn.Sequential(shared, nn.ReLU(), shared), 0.25)
    thin = ks.factorise(net)
    assert thin[0] is thin[2]
    assert type(thin[0]) is nn.Sequential
    x = torch.randn(5, 64)
    assert torch.allclose(thin(x), ks.collapse(net)(x), atol=1e-5)


def test_tied_weights_stay_tied_and_dense():
    model = nn.Sequential(nn.Embedding(60, 40), nn.Linear(40, 60, bias=False))
    model[1].weight = model[0].weight
    thin = ks.factorise(ks.germinate(model, 0.25, min_rank=1, over="weights"))
    assert thin[0].weight is thin[1].weight


@pytest.mark.parametrize(("batch", "training", "dense"), [(1, True, False), (64, True, True), (1, False, True)])
@pytest.mark.parametrize("layer", [nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 8)], ids=["convolution", "linear"])
def test_a_fixed_weight_is_multiplied_out_where_that_is_cheaper(layer, batch, training, dense):
    """At full rank two layers are dearer than one, but a product for one small batch is dearer still."""
    net = ks.germinate(layer, 1.0, min_rank=1, fixed=True)
    x = torch.randn(batch, 8, 4, 4) if isinstance(layer, nn.Conv2d) else torch.randn(batch, 8)
    with torch.set_grad_enabled(training), assuming(MULTIPLICATIONS):
        draw = net.draw()
        output = draw(x)
    assert ("source" in vars(draw.samples["weight"])) == dense
    torch.testing.assert_close(output, ks.collapse(net)(x), atol=1e-5, rtol=1e-5)


class Standardised(nn.Conv2d):
    """A convolution that does something else with its weight, and with its arguments."""

    def __init__(self, channels):
        super().__init__(channels, channels, 3, padding=1)

    def forward(self, x):
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return F.conv2d(input=x, weight=weight, bias=self.bias, padding=1)


class ByKeyword(nn.Linear):
    def forward(self, x):
        return F.linear(x, weight=self.weight, bias=self.bias)


@pytest.mark.parametrize(
    ("layer", "shape"), [(Standardised(16), (2, 16, 5, 5)), (ByKeyword(16, 16), (2, 16))], ids=["convolution", "linear"]
)
def test_layers_of_ones_own_do_what_they_do(layer, shape):
    net = ks.germinate(layer, 0.25, min_rank=1, fixed=True).eval()
    x = torch.randn(shape)
    expected = ks.collapse(net)(x)
    torch.testing.assert_close(net(x), expected, atol=1e-5, rtol=1e-5)
    thin = ks.factorise(net)
    assert type(thin) is type(layer)
    torch.testing.assert_close(thin(x), expected)


class Checkpointed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


def test_a_weight_is_multiplied_out_as_when_it_was_drawn():
    """Whoever asks first: a call without a graph, or one that is recomputed in the backward pass."""
    layer, x, found = nn.Linear(8, 8), torch.randn(64, 8), []
    for model, first in ((layer, torch.enable_grad), (layer, torch.no_grad), (Checkpointed(layer), torch.enable_grad)):
        net = ks.germinate(model, 1.0, min_rank=1, fixed=True)
        draw = net.draw()
        with first():
            draw(x)
        assert all("source" in vars(sample) for sample in draw.samples.values())
        found.append(torch.autograd.grad(draw(x).square().sum(), list(net.parameters())))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_a_fixed_network_takes_an_empty_batch():
    net = ks.germinate(nn.Linear(8, 8), 1.0, min_rank=1, fixed=True)
    assert net.draw()(torch.randn(0, 8)).shape == (0, 8)


def test_with_an_example_a_layer_stays_dense_where_two_calls_are_slower(monkeypatch):
    """Timed layer by layer; here the first is found to be faster dense."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    net, x = ks.germinate(model, 0.25, over="weights"), torch.randn(3, 64)
    assert [type(layer) for layer in ks.factorise(net)] == [nn.Sequential, nn.ReLU, nn.Sequential]
    monkeypatch.setattr("kernelseed.core.export._faster", lambda dense, pair, seen: seen is x)
    thin = ks.factorise(net, example=x)
    assert [type(layer) for layer in thin] == [nn.Linear, nn.ReLU, nn.Sequential]
    torch.testing.assert_close(thin(x), ks.collapse(net)(x), rtol=1e-4, atol=1e-5)


def test_the_faster_of_two_layers_is_found():
    small, large, x = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4000), nn.Linear(4000, 8)), torch.randn(500, 8)
    assert export._faster(small, large, x)
    assert not export._faster(large, small, x)


class Viewing(nn.Module):
    """A model that can't have its channels last."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(16, 16, 3), nn.Linear(16 * 16, 3)

    def forward(self, x):
        return self.fc(self.conv(x).view(len(x), -1))


@pytest.mark.parametrize("last", [True, False])
def test_with_an_example_channels_lie_as_is_faster(last, monkeypatch):
    def faster(one, other, x):  # layers are thin; of two networks the first has its channels last
        return type(x) is torch.Tensor and x is image and last

    image = torch.randn(2, 16, 6, 6)
    monkeypatch.setattr(export, "_faster", faster)
    net = ks.germinate(nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)), 0.25)
    thin = ks.factorise(net, example=image)
    assert thin(image).is_contiguous(memory_format=torch.channels_last) == last
    torch.testing.assert_close(thin(image), ks.collapse(net)(image), rtol=1e-4, atol=1e-5)
    viewing = ks.germinate(Viewing(), 0.25)
    torch.testing.assert_close(
        ks.factorise(viewing, example=image)(image), ks.collapse(viewing)(image), rtol=1e-4, atol=1e-5
    )
    small = ks.germinate(nn.Sequential(nn.Conv2d(16, 4, 3), nn.Conv2d(4, 16, 1, stride=2)), 0.25)
    assert ks.factorise(small, example=image)(image).is_contiguous()

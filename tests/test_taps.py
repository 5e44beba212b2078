"""Void taps: a trimmed convolution is the convolution, with less work."""

import copy
import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import kernelseed as ks
from kernelseed.fast.costs import TABLE, Costs, assuming, current_costs, known_costs
from kernelseed.fast.processor import processor_kind
from kernelseed.fast.taps import TrimmedConv2d, by_position, conv2d, live_convolution, live_taps, trim, windows
from kernelseed.models.resnet import resnet18

settings_of_an_axis = st.tuples(  # pixels, taps, stride, padding, dilation
    st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(1, 2)
)
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def telling(test):
    """Drawn settings, and those that a ResNet meets: one pixel, two, a stride, and a kernel that does not fit."""
    for axis in ((1, 3, 1, 1, 1), (2, 3, 2, 1, 1), (2, 3, 1, 1, 1), (5, 3, 2, 1, 1), (1, 3, 2, 3, 2), (2, 3, 1, 0, 1)):
        test = example(axis)(test)
    return given(settings_of_an_axis)(quick(test))


def fits(extent, taps, stride, padding, dilation):
    return extent + 2 * padding >= dilation * (taps - 1) + 1


def check_alike(run, other, *shapes):
    """The same output, and the same gradients of all operands."""
    operands = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    results = []
    for function in (run, other):
        output = function(*operands)
        results.append((output, torch.autograd.grad(output.square().sum(), operands)))
    torch.testing.assert_close(results[1], results[0])


@telling
def test_same_output_and_gradients(axis):
    extent, taps, *rest = axis
    if not fits(*axis):
        with pytest.raises(RuntimeError, match="Kernel size"):
            conv2d(torch.ones(1, 1, extent, extent), torch.ones(1, 1, taps, taps), None, *rest)
        return
    shapes = (2, 2, extent, extent + 1), (4, 1, taps, taps), (4,)
    check_alike(lambda *o: F.conv2d(*o, *rest, groups=2), lambda *o: conv2d(*o, *rest, groups=2), *shapes)


@telling
def test_by_position_is_the_convolution(axis):
    extent, taps, *rest = axis
    down, across = windows(*axis), windows(extent + 1, taps, *rest)
    assert bool(down) == fits(*axis)
    if down:
        shapes = (2, 3, extent, extent + 1), (4, 3, taps, taps), (4,)
        check_alike(lambda *o: F.conv2d(*o, *rest), lambda *o: by_position(*o, down, across), *shapes)


@telling
def test_leaves_out_only_what_has_no_gradient(axis):
    if not fits(*axis):
        return
    extent, taps, *rest = axis
    weight = torch.ones(1, 1, taps, requires_grad=True)
    F.conv1d(torch.ones(1, 1, extent), weight, None, *rest).sum().backward()
    kept, _ = live_taps(*axis)
    void = torch.ones(taps, dtype=torch.bool)
    void[kept] = False
    assert not weight.grad[0, 0, void].any()


POSITIONS = Costs(convolution=1, product=1e-3)
"""Of a processor whose matrix products are a thousand times as fast as its convolutions."""


@pytest.mark.parametrize(
    ("costs", "extent", "groups", "products"),
    [
        (POSITIONS, 2, 1, 4),
        (POSITIONS, 1, 1, 1),
        (POSITIONS, 3, 1, 9),
        (POSITIONS, 2, 2, 0),
        (Costs(convolution=1, product=2), 1, 1, 0),
        (Costs(convolution=1, product=1, call=1e6), 2, 1, 0),
        (Costs(convolution=1, product=1e-3, byte=1e3), 2, 1, 0),
    ],
)
def test_products_by_position_where_they_cost_less(costs, extent, groups, products, monkeypatch):
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 4, 3, padding=1, groups=groups)
    x = torch.randn(64, 2, extent, extent)
    expected = layer(x)
    seen = []
    multiply = Tensor.__matmul__
    monkeypatch.setattr(Tensor, "__matmul__", lambda a, b: seen.append(b.shape) or multiply(a, b))
    with assuming(costs):
        torch.testing.assert_close(trim(layer)(x), expected)
    assert len(seen) == products


@pytest.mark.parametrize("kind", [*json.loads(TABLE.read_text()), "a kind that nobody measured"])
def test_every_kind_of_processor_has_costs_that_choose(kind):
    """On any of them, one pixel of many channels is a product, and a large image a convolution of the library."""
    found = known_costs(kind)
    one, many = (live_convolution(extent, 3, 1, 1, 1) for extent in (1, 28))
    for training in (True, False):
        whole, products = many.times(128, 64, 64, found, training)
        assert whole < products
    whole, products = one.times(128, 512, 512, found, True)
    assert products < whole


def test_costs_are_measured():
    found = Costs.measured(repeats=1)
    assert all(value > 0 for value in dataclasses.astuple(found))
    with assuming(found):
        assert current_costs() is found
    assert current_costs() == known_costs(processor_kind())


@pytest.mark.parametrize(
    ("maker", "family", "kind"),
    [("AuthenticAMD", "25", "amd-avx2"), ("AuthenticAMD", "26", "amd-zen5-avx2"), ("GenuineIntel", "26", "intel-avx2")],
)
def test_kinds_of_processors(maker, family, kind, monkeypatch):
    said = {"vendor_id": maker, "cpu family": family, "flags": "avx2"}
    monkeypatch.setattr("kernelseed.fast.processor._cpuinfo", lambda *keys: said[keys[0]])
    monkeypatch.setattr("kernelseed.fast.processor.processor_features", lambda: ("avx2",))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert processor_kind.__wrapped__() == kind


def test_products_for_many_draws_at_once():
    weights, x = torch.randn(3, 5, 2, 3, 3), torch.randn(64, 2, 2, 2)
    with assuming(POSITIONS):
        together = torch.func.vmap(lambda weight: conv2d(x, weight, padding=1))(weights)
    torch.testing.assert_close(together, torch.stack([F.conv2d(x, weight, padding=1) for weight in weights]))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_products_lay_their_output_out_as_the_convolution_does(layout):
    layer = nn.Conv2d(3, 5, 3, padding=1)
    x = torch.randn(64, 3, 2, 2).to(memory_format=layout)
    with assuming(POSITIONS):
        assert trim(copy.deepcopy(layer))(x).stride() == layer(x).stride()


def test_one_pixel_runs_one_tap(monkeypatch):
    seen = []
    run = F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda x, weight, *rest: seen.append(weight.shape) or run(x, weight, *rest))
    trim(nn.Conv2d(3, 5, 3, padding=1))(torch.ones(1, 3, 1, 1))
    trim(nn.Conv2d(3, 5, 3, stride=2, padding=1))(torch.ones(1, 3, 2, 2))
    assert seen == [(5, 3, 1, 1), (5, 3, 2, 2)]


@pytest.mark.parametrize("options", [{"padding_mode": "reflect", "padding": 1}, {"padding": "same"}])
def test_other_paddings_run_whole(options):
    plain = nn.Conv2d(1, 1, 3, **options)
    x = torch.randn(1, 1, 2, 2)
    assert torch.equal(trim(copy.deepcopy(plain))(x), plain(x))


@pytest.mark.parametrize(
    ("method", "layout"), [("ksn", torch.contiguous_format), ("fksn", torch.channels_last)], ids=["ksn", "fksn"]
)
def test_a_network_trains_alike(method, layout):
    made = ks.methods.make(method)
    torch.manual_seed(10)  # no activation is so near zero that rounding turns it off
    x, y = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    losses, gradients = [], []
    for change, images in ((lambda model: model, x), (trim, x.to(memory_format=layout))):
        torch.manual_seed(0)
        net = made.build(change(resnet18(10, 1, width=8)))
        torch.manual_seed(1)
        terms = made.terms(net, images, y, ks.schedules.Moment(0, 100))
        terms.loss.backward()
        losses.append(terms.nll)
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    torch.testing.assert_close(losses[1], losses[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4 * gradients[0].abs().max().item(), rtol=1e-3)


@pytest.mark.parametrize(
    ("channels", "extent", "stride"), [((16, 64), 1, 1), ((64, 16), 2, 2), ((16, 64), 2, 1), ((64, 16), 5, 2)]
)
def test_thin_layers_leave_them_out_too(channels, extent, stride, monkeypatch):
    torch.manual_seed(0)
    layer = nn.Conv2d(*channels, 3, stride, padding=1)
    net = ks.germinate(layer, 0.25, min_rank=1, fixed=True)
    x = torch.randn(3, channels[0], extent, extent)
    wide = []  # the layer's own call, then ours
    run = F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda x, w, *rest: wide.append(w.shape[-1]) or run(x, w, *rest))
    with assuming(Costs(convolution=1, product=1e3)):  # no products by position, and none to multiply out
        output = net.draw()(x)
    taps = live_taps(extent, 3, stride, 1, 1)[0]
    assert wide == [3, taps.stop - taps.start]
    torch.testing.assert_close(output, ks.collapse(net)(x), atol=1e-5, rtol=1e-5)


def test_trims_plain_convolutions_only():
    class Own(nn.Conv2d):
        pass

    model = trim(nn.Sequential(Own(1, 1, 3), nn.Conv2d(1, 1, 3), nn.Conv1d(1, 1, 3)))
    assert [type(layer) for layer in model] == [Own, TrimmedConv2d, nn.Conv1d]


def test_by_position_has_the_type_of_the_convolution_under_autocast():
    x, weight, bias = torch.randn(2, 8, 2, 2), torch.randn(4, 8, 3, 3), torch.randn(4)
    down, across = windows(2, 3, 1, 1, 1), windows(2, 3, 1, 1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.conv2d(x, weight, bias, padding=1)
        assert by_position(x, weight, bias, down, across).dtype == expected.dtype == torch.bfloat16

"""Collapse: a plain module again, with no trace of the library."""

import subprocess
import sys

import pytest
import torch
from kinds import KINDS, convnet, generator, mlp, trained
from torch import nn

import kernelseed as ks


@pytest.mark.parametrize("kind", ["conv2d", "lstm", "attention_apart", "parameter_containers", "tied", "twice"])
def test_a_collapsed_net_is_of_the_models_own_class_and_keys(kind):
    model = KINDS[kind].make()
    plain = ks.collapse(ks.germinate(model, over="weights"))
    assert [type(m) for m in plain.modules()] == [type(m) for m in model.modules()]
    assert list(plain.state_dict()) == list(model.state_dict())
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert all(isinstance(p, nn.Parameter) and p.is_leaf and p.is_contiguous() for p in plain.parameters())
    model.load_state_dict(plain.state_dict())
    x = KINDS[kind].inputs()
    assert torch.equal(model.eval()(*x), plain.eval()(*x))


def test_weights_are_those_of_the_draw_or_the_mean():
    net = trained(ks.germinate(mlp(3, 6, 4), 0.5, min_rank=2, over="weights"))
    mean, draw = ks.collapse(net), net.draw(generator())
    one = ks.collapse(net, draw)
    for name in net.weights:
        assert torch.equal(mean.get_parameter(name), net.weights[name].moments().mean)
        assert torch.equal(one.get_parameter(name), draw.weights[name])
    assert not torch.equal(mean[0].weight, one[0].weight)


def test_it_is_independent_of_the_net():
    net, x = ks.germinate(convnet(), over="weights"), torch.randn(4, 1, 4, 4)
    plain = ks.collapse(net).eval()
    before = plain(x)
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.add_(1)
    assert torch.equal(plain(x), before)
    after = net.eval()(x)
    with torch.no_grad():
        for tensor in (*plain.parameters(), *plain.buffers()):
            tensor.zero_()
    assert torch.equal(net(x), after)


def test_modes_and_buffers_come_along():
    net = ks.germinate(convnet(), over="weights")
    net.train()(torch.randn(9, 1, 4, 4) + 2)
    net.skeleton[1].eval()
    plain = ks.collapse(net)
    assert [m.training for m in plain.modules()] == [m.training for m in net.skeleton.modules()]
    assert torch.equal(plain[1].running_mean, net.skeleton[1].running_mean)
    assert torch.equal(plain[1].num_batches_tracked, torch.tensor(1))


def test_a_draws_own_statistics_come_along():
    net = ks.germinate(convnet(), over="weights").eval()
    mean = net.mean()
    draw = ks.Draw(mean.skeleton, mean.samples, mean.aliases, {"1.running_mean": torch.full((4,), 2.0)})
    plain, x = ks.collapse(net, draw), torch.randn(3, 1, 4, 4)
    torch.testing.assert_close(plain(x), draw(x))
    assert torch.equal(net.skeleton[1].running_mean, torch.zeros(4))


def test_frozen_weights_stay_frozen():
    model = mlp(3, 4, 2)
    model[0].weight.requires_grad_(False)
    for net in (ks.germinate(model, over="weights"), ks.bayesianize(model), ks.germinate(model, fixed=True)):
        plain = ks.collapse(net)
        assert [p.requires_grad for p in plain.parameters()] == [p.requires_grad for p in model.parameters()]


def test_a_collapsed_net_can_be_trained_and_converted_again():
    net, x = ks.germinate(mlp(3, 6, 4), 1.0, over="weights"), torch.randn(5, 3)
    plain = ks.collapse(net)
    plain(x).sum().backward()
    assert all(p.grad is not None for p in plain.parameters())
    torch.testing.assert_close(ks.germinate(plain, 1.0, over="weights").eval()(x), plain(x))


def test_a_collapsed_net_needs_no_kernelseed(tmp_path):
    net, x = ks.germinate(nn.Sequential(nn.Linear(3, 6), nn.LSTM(6, 2)), over="weights").eval(), torch.randn(5, 3)
    torch.save(ks.collapse(net), tmp_path / "plain.pt")
    torch.save((x, net(x)[0].detach()), tmp_path / "expected.pt")
    script = (
        "import sys, torch\n"
        f"plain = torch.load({str(tmp_path / 'plain.pt')!r}, weights_only=False)\n"
        f"x, expected = torch.load({str(tmp_path / 'expected.pt')!r})\n"
        "torch.testing.assert_close(plain(x)[0].detach(), expected)\n"
        "assert 'kernelseed' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("kind", ["conv2d", "attention", "tied"])
def test_torch_export_takes_a_collapsed_net(kind):
    net, x = trained(ks.germinate(KINDS[kind].make(), 0.5, over="weights")), KINDS[kind].inputs()
    plain = ks.collapse(net).eval()
    exported = torch.export.export(plain, x)
    torch.testing.assert_close(exported.module()(*x), net.eval()(*x))

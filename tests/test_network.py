"""The Bayesian module: what train and eval mean, and that a call leaves nothing behind."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from kinds import DISTRIBUTIONS, KINDS, convnet, generator, mlp, trained
from torch import nn

import kernelseed as ks

RANDOM = [name for name in DISTRIBUTIONS if name != "fixed"]


class Many(nn.Module):
    """A module with positional and keyword arguments, and more than one result."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, y=None, *, scale=1.0):
        return {"sum": self.linear(x) * scale + (0 if y is None else y), "input": x}


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.recurrent = nn.LSTM(3, 3)

    def forward(self, x):
        self.recurrent(self.linear(x))
        raise RuntimeError("forward failed")


def holds_no_weights(net):
    return all(
        net.skeleton.get_submodule(name.rpartition(".")[0])._parameters[name.rpartition(".")[2]] is None
        for name in (*net.weights, *net.weights.aliases)
    )


@pytest.mark.parametrize("distribution", RANDOM)
def test_train_mode_draws_afresh_and_eval_mode_is_the_mean(distribution):
    model, x = mlp(3, 4, 2), torch.randn(5, 3)
    net = trained(DISTRIBUTIONS[distribution](model))
    assert net.training
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
    assert torch.equal(net(x), net.mean()(x))
    net.train()
    torch.manual_seed(1)
    one = net(x)
    torch.manual_seed(1)
    assert torch.equal(one, net.draw()(x))


def test_a_fixed_net_is_the_same_in_both_modes():
    net, x = ks.germinate(mlp(3, 4, 2), fixed=True), torch.randn(5, 3)
    assert torch.equal(net.train()(x), net.eval()(x))


def test_arguments_and_results_go_through():
    net = ks.germinate(Many(), 1.0).eval()
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    plain = net(x)
    torch.testing.assert_close(net(x, y)["sum"], plain["sum"] + y)
    torch.testing.assert_close(net(x, y=y, scale=2.0)["sum"], 2 * plain["sum"] + y)
    assert net(x)["input"] is x
    draw = net.draw()
    torch.testing.assert_close(draw(x, scale=3.0)["sum"], 3 * draw(x)["sum"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distribution", ["mean_field", "seed_half", "fixed"])
def test_the_skeleton_holds_no_weights_before_during_and_after(kind, distribution):
    net, x = DISTRIBUTIONS[distribution](KINDS[kind].make()), KINDS[kind].inputs()
    assert holds_no_weights(net)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()]
    keys = list(net.state_dict())
    net(*x)
    assert holds_no_weights(net)
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()]
    assert keys == list(net.state_dict())


def test_a_forward_that_raises_leaves_nothing_behind():
    net = ks.germinate(Fails())
    keys = list(net.state_dict())
    with pytest.raises(RuntimeError, match="forward failed"):
        net(torch.randn(2, 3))
    assert holds_no_weights(net)
    assert keys == list(net.state_dict())
    assert not any(m._forward_pre_hooks for m in net.modules())
    copy.deepcopy(net)
    pickle.dumps(net)


@pytest.mark.parametrize("kind", ["lstm", "gru", "linear_wide", "attention"])
def test_a_net_holds_on_to_no_draw(kind):
    net, x = ks.germinate(KINDS[kind].make()), KINDS[kind].inputs()
    output = net(*x)
    output.sum().backward()
    twin = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    assert torch.equal(twin.mean()(*x), net.mean()(*x))
    draw = net.draw()
    draw(*x)
    values = [weakref.ref(value) for value in draw.weights.values()]
    del draw, output
    gc.collect()
    assert all(value() is None for value in values)


def test_recurrent_layers_use_the_draw_they_are_given():
    net, x = ks.bayesianize(nn.LSTM(3, 4), rho_offset=0.0), torch.randn(5, 2, 3)
    one, two = net.draw(), net.draw()
    first = one(x)[0]
    assert not torch.equal(first, two(x)[0])
    assert torch.equal(first, one(x)[0])
    plain = ks.collapse(net, one)
    torch.testing.assert_close(plain(x)[0], first)


def test_batchnorm_statistics_follow_training_and_not_evaluation():
    net, x = ks.germinate(convnet()), torch.randn(16, 1, 4, 4) + 3
    before = net.skeleton[1].running_mean.clone()
    net.eval()(x)
    assert torch.equal(net.skeleton[1].running_mean, before)
    draw = net.train().draw()
    draw(x)
    expected = 0.9 * before + 0.1 * nn.functional.conv2d(x, draw.weights["0.weight"]).mean((0, 2, 3))
    torch.testing.assert_close(net.skeleton[1].running_mean, expected)
    assert int(net.skeleton[1].num_batches_tracked) == 1


def test_the_mean_is_differentiable():
    net = ks.germinate(mlp(3, 4, 2)).eval()
    net(torch.randn(5, 3)).square().sum().backward()
    distribution = net.weights["0.weight"]
    assert distribution.seed.grad.abs().sum() > 0
    assert distribution.mean_germinator.grad.abs().sum() > 0


def test_a_posterior_gives_any_number_of_draws_from_one_germination():
    net, x = trained(ks.germinate(mlp(3, 4, 2))), torch.randn(5, 3)
    posterior = net.posterior()
    a = [posterior.draw(g)(x) for g in [generator(1)] for _ in range(2)]
    b = [net.draw(g)(x) for g in [generator(1)] for _ in range(2)]
    assert not torch.equal(a[0], a[1])
    torch.testing.assert_close(torch.stack(a), torch.stack(b))
    torch.testing.assert_close(posterior.mean()(x), net.mean()(x))
    assert set(posterior.gaussians) == set(net.weights)
    for name, gaussian in posterior.gaussians.items():
        torch.testing.assert_close(gaussian.mean, net.weights[name].moments().mean)
        torch.testing.assert_close(gaussian.std, net.weights[name].moments().std)


def test_weights_are_a_mapping_by_parameter_name():
    net = ks.germinate(nn.ModuleDict({"a": mlp(3, 4, 2), "b": nn.Linear(2, 2)}))
    assert list(net.weights) == [name for name, _ in net.weights.items()] == ["a.0.weight", "a.2.weight", "b.weight"]
    assert len(net.weights) == 3
    assert "b.weight" in net.weights
    assert "b.bias" not in net.weights
    assert "a" not in net.weights
    with pytest.raises(KeyError, match=r"b\.bias.*a\.0\.weight"):
        net.weights["b.bias"]


def test_draws_and_gaussians_are_immutable():
    draw = ks.germinate(nn.Linear(3, 2)).draw()
    sample = draw.samples["weight"]
    for value, name in ((draw, "skeleton"), (sample, "value"), (sample.source, "mean")):
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_a_draw_as_a_value_keeps_its_own_buffers_apart():
    net = ks.germinate(convnet()).eval()
    x = torch.randn(4, 1, 4, 4)
    shifted = {"1.running_mean": torch.full((4,), 5.0)}
    draw = net.mean()
    other = ks.Draw(draw.skeleton, draw.samples, draw.aliases, shifted)
    assert not torch.equal(draw(x), other(x))
    assert torch.equal(net.skeleton[1].running_mean, torch.zeros(4))


def test_draws_without_a_generator_follow_the_global_seed_and_with_one_do_not_touch_it():
    net = ks.germinate(nn.Linear(3, 2))
    state = torch.get_rng_state()
    net.draw(generator())
    net.mean()
    assert torch.equal(state, torch.get_rng_state())
    net.draw()
    assert not torch.equal(state, torch.get_rng_state())


def test_a_net_learns():
    x = torch.randn(128, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = ks.germinate(mlp(2, 32, 32, 2), 0.5, min_rank=4)
    loss = ks.ELBO(num_data=128, kl_weight=ks.schedules.constant(0.01))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        loss(net.draw(), x, y).loss.backward()
        optimizer.step()
    assert (ks.predict(net, x, samples=8).label == y).float().mean() > 0.95

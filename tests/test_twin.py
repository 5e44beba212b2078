"""Twins: whatever a module does in its forward, it does with the drawn weights, and keeps what it did."""

import functools
from collections.abc import Callable

import pytest
import torch
from kinds import generator, mlp
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import kernelseed as ks
from kernelseed.core.twin import call_with

X = torch.randn(5, 3, generator=generator())


def bayesian(model):
    """Every parameter of the model Bayesian, biases too, and every draw far from the mean."""
    return ks.bayesianize(model, rho_offset=0.0, where=lambda name, parameter: True)


def check_draw(net, x=X):
    """A draw runs as a plain module of its weights does."""
    draw = net.draw()
    torch.testing.assert_close(draw(x), ks.collapse(net, draw)(x))
    assert not torch.allclose(draw(x), net.draw()(x))


# --- what a forward sets ---------------------------------------------------------------------------------------


class Stateful(nn.Module):
    """A module that leaves things in itself while it runs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(()))
        self.calls, self.log, self.first, self.head = 0, [], True, None

    def forward(self, x):
        self.calls += 1
        self.log.append(self.calls)
        self.last = self.linear(x)
        self.linear.seen_by = self.calls
        self.total = self.total + 1
        if self.head is None:
            self.register_buffer("new", torch.zeros(()))
            self.head = nn.Linear(3, 2)
            del self.first
        self.new += 1
        self.used, self.run = [self.linear], self.linear.forward
        return self.head(self.last)


def test_what_a_forward_sets_and_deletes_is_kept():
    net = bayesian(Stateful())
    skeleton = net.skeleton
    draw = net.draw()
    first = draw(X)
    head = skeleton.head
    assert torch.equal(first, draw(X))  # the layer that the first call made is the second's
    assert skeleton.calls == skeleton.linear.seen_by == 2
    assert skeleton.log == [1, 2]
    assert skeleton.total == skeleton.new == 2
    assert not hasattr(skeleton, "first")
    assert skeleton.head is head
    torch.testing.assert_close(skeleton.last, nn.functional.linear(X, *draw.weights.values()))
    assert {"skeleton.new", "skeleton.head.weight"} <= set(net.state_dict())
    assert skeleton.used[0] is skeleton.run.__self__ is skeleton.linear  # and not their twins
    assert skeleton.linear.weight is None


def test_what_a_forward_left_is_no_hindrance_to_collapsing_and_converting():
    net = bayesian(Stateful())
    net(X)
    plain = ks.collapse(net)
    assert not plain.last.requires_grad
    plain(X)
    bayesian(plain)(X)


def test_a_buffer_of_the_draws_own_stays_the_draws():
    net = bayesian(Stateful())
    draw = net.draw()
    ks.Draw(net.skeleton, draw.samples, {}, {"total": torch.tensor(7.0)})(X)
    assert net.skeleton.total == 0


@pytest.mark.parametrize("mode", [True, False])
def test_batchnorm_statistics_follow_training_and_not_evaluation(mode):
    net = ks.germinate(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), over="weights").train(mode)
    draw = net.draw()
    draw(X)
    expected = 0.1 * nn.functional.linear(X, draw.weights["0.weight"], net.skeleton[0].bias).mean(0)
    torch.testing.assert_close(net.skeleton[1].running_mean, expected if mode else torch.zeros(4))
    assert net.skeleton[1].num_batches_tracked == mode


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.recurrent = nn.Linear(3, 3), nn.LSTM(3, 3)

    def forward(self, x):
        self.output, self.linear.extra = self.recurrent(self.linear(x)), 1
        raise RuntimeError("forward failed")


def test_a_forward_that_raises_leaves_the_skeleton_as_it_was():
    net = bayesian(Fails())
    before = [{name: id(value) for name, value in vars(module).items()} for module in net.modules()]
    keys = list(net.state_dict())
    with pytest.raises(RuntimeError, match="forward failed"):
        net(X)
    assert before == [{name: id(value) for name, value in vars(module).items()} for module in net.modules()]
    assert keys == list(net.state_dict())
    assert net.skeleton.linear.weight is net.skeleton.recurrent.weight_hh_l0 is None


# --- what a module refers to -----------------------------------------------------------------------------------


class Refers(nn.Module):
    """A module that runs its layer by a reference of some kind, made when it is built."""

    def __init__(self, refer: Callable, run: Callable):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.inner = nn.Sequential(nn.Linear(3, 3))
        self.inner.__dict__["reference"] = refer(self.linear)
        self.run = run

    def forward(self, x):
        return self.inner(self.run(self.inner.reference, x))


REFERENCES = {
    "module": (lambda layer: layer, lambda r, x: r(x)),
    "list": (lambda layer: [layer], lambda r, x: r[0](x)),
    "pairs": (lambda layer: [("a", layer)], lambda r, x: dict(r)["a"](x)),
    "dictionary": (lambda layer: {"a": {"b": layer}}, lambda r, x: r["a"]["b"](x)),
    "bound method": (lambda layer: layer.forward, lambda r, x: r(x)),
    "methods": (lambda layer: (layer.forward,), lambda r, x: r[0](x)),
    "partial": (lambda layer: functools.partial(layer.__call__), lambda r, x: r(x)),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_reference_to_a_module_runs_with_the_drawn_weights(kind):
    net = bayesian(Refers(*REFERENCES[kind]))
    kept = net.skeleton.inner.reference
    check_draw(net)
    assert net.skeleton.inner.reference is kept


class Features(nn.Module):
    """A module whose hook hands it the features of an inner layer."""

    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(3, 4, 3), nn.Linear(4, 2)
        self.body[0].register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.features = output

    def forward(self, x):
        self.body(x)
        return self.head(self.features)


def test_hooks_fire_on_the_users_layers_and_may_be_methods():
    check_draw(bayesian(Features()))
    model, seen = mlp(3, 4, 2), []
    model[0].register_forward_pre_hook(lambda module, inputs: seen.append("before"))
    model[2].register_forward_hook(lambda module, inputs, output: seen.append(tuple(module.weight.shape)))
    model[0].register_full_backward_hook(lambda module, inputs, outputs: seen.append("backward"))
    bayesian(model)(X.clone().requires_grad_()).sum().backward()
    assert seen == ["before", (2, 4), "backward"]


class Looks(nn.Module):
    """A module that asks its parameters where they are, as many of transformers' do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        assert [name for name, _ in self.named_parameters()] == ["linear.weight", "linear.bias"]
        first = next(self.parameters())
        return self.linear(x.to(first.device, first.dtype))


def test_parameters_are_there_when_a_forward_looks_for_them():
    net = bayesian(Looks())
    check_draw(net, X.double())
    assert not list(net.skeleton.parameters())


def test_a_module_may_have_two_parents():
    shared = nn.Linear(3, 3)
    net = bayesian(nn.Sequential(nn.Sequential(shared, nn.Tanh()), nn.Sequential(nn.Tanh(), shared)))
    assert list(net.weights) == ["0.0.weight", "0.0.bias"]
    check_draw(net)


def test_a_traced_graph_is_a_module_like_others():
    model = mlp(3, 4, 2)
    net = bayesian(torch.fx.symbolic_trace(model))
    check_draw(net)
    torch.testing.assert_close(net.eval()(X), model(X))


@pytest.mark.parametrize("parametrization", [spectral_norm, weight_norm])
def test_parametrized_modules_run_and_learn(parametrization):
    model = nn.Sequential(parametrization(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 2))
    net = ks.bayesianize(model, rho_offset=0.0)
    estimates = [b.clone() for b in net.buffers()]
    draw = net.draw()
    (draw(X).square().sum() + draw.kl(ks.ScaleMixture())).backward()
    assert all(p.grad.abs().sum() > 0 for p in net.parameters())
    for before, after in zip(estimates, net.buffers(), strict=True):  # power iteration goes on in train mode
        assert not torch.equal(before, after)
    net.eval()
    check_draw(net)


def test_call_with_takes_buffers_and_leaves_the_module_alone():
    layer = nn.BatchNorm1d(3).eval()
    shifted = call_with(layer, {"running_mean": torch.ones(3), "bias": torch.full((3,), 2.0)}, X)
    torch.testing.assert_close(shifted, layer(X - 1) + 2)
    assert not layer.running_mean.any()
    assert not layer.bias.any()

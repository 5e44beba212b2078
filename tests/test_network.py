"""The Bayesian module: what train and eval mean, what a draw is, and that a call leaves nothing behind."""

import copy
import gc
import pickle
import weakref
from collections.abc import Mapping

import pytest
import torch
from kinds import DISTRIBUTIONS, KINDS, convnet, generator, mlp, trained
from torch import nn

import kernelseed as ks
from kernelseed.core.weights.fused_sample import FusedSample
from kernelseed.fast import kernels

X = torch.randn(5, 3, generator=generator())


class Many(nn.Module):
    """A module with positional and keyword arguments, and more than one result."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, y=None, *, scale=1.0):
        return {"sum": self.linear(x) * scale + (0 if y is None else y), "input": x}


@pytest.mark.parametrize("distribution", ["mean_field", "seed"])
def test_train_mode_draws_afresh_and_eval_mode_is_the_mean(distribution):
    net = trained(DISTRIBUTIONS[distribution](mlp(3, 4, 2)))
    assert net.training
    assert not torch.equal(net(X), net(X))
    net.eval()
    assert torch.equal(net(X), net.mean()(X))
    net.train()
    torch.manual_seed(1)
    one = net(X)
    torch.manual_seed(1)
    assert torch.equal(one, net.draw()(X))


def test_a_fixed_net_is_the_same_in_both_modes():
    net = ks.germinate(mlp(3, 4, 2), fixed=True)
    assert torch.equal(net.train()(X), net.eval()(X))


def test_arguments_and_results_go_through():
    net = ks.germinate(Many(), 1.0, over="weights").eval()
    y = torch.randn(5, 3)
    plain = net(X)
    torch.testing.assert_close(net(X, y)["sum"], plain["sum"] + y)
    torch.testing.assert_close(net(X, y=y, scale=2.0)["sum"], 2 * plain["sum"] + y)
    assert net(X)["input"] is X


@pytest.mark.parametrize("kind", ["lstm", "attention_apart", "tied"])
def test_the_skeleton_holds_no_weights_before_and_after_a_call(kind):
    net, x = ks.germinate(KINDS[kind].make(), over="weights"), KINDS[kind].inputs()
    keys = list(net.state_dict())
    for run in (lambda: None, lambda: net(*x)):
        run()
        for name in (*net.weights, *net.weights.aliases):
            path, _, leaf = name.rpartition(".")
            assert getattr(net.skeleton.get_submodule(path), leaf) is None
        assert keys == list(net.state_dict())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by the kernels, and by plain operations
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_net_holds_on_to_no_draw(distribution, dtype):
    net, x = DISTRIBUTIONS[distribution](KINDS["lstm"].make().to(dtype)), KINDS["lstm"].inputs(dtype)
    draw = net.draw()
    loss = draw(*x).sum() + draw.kl(ks.ScaleMixture())
    loss.backward()
    values = [weakref.ref(value) for value in draw.weights.values()]
    del draw, loss
    gc.collect()
    assert all(value() is None for value in values)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    assert torch.equal(twin.mean()(*x), net.mean()(*x))


def test_the_mean_is_differentiable_and_asks_nothing_of_the_deviations():
    for net, learned in (
        (ks.bayesianize(mlp(3, 4, 2)), {"mu"}),
        (ks.germinate(mlp(3, 4, 2), over="weights"), {"seed", "mean_germinator"}),
    ):
        net.eval()(X).square().sum().backward()
        parameters = net.weights["0.weight"].named_parameters()
        assert {name for name, p in parameters if p.grad is not None and p.grad.any()} == learned
        optional = getattr(net.weights["0.weight"], "rho", None)
        assert optional is None or optional.grad is None


def test_a_posterior_gives_any_number_of_draws_from_one_germination():
    net = trained(ks.germinate(mlp(3, 4, 2), over="weights"))
    posterior = net.posterior()
    a = [posterior.draw(g)(X) for g in [generator(1)] for _ in range(2)]
    b = [net.draw(g)(X) for g in [generator(1)] for _ in range(2)]
    assert not torch.equal(a[0], a[1])
    torch.testing.assert_close(torch.stack(a), torch.stack(b))
    torch.testing.assert_close(posterior.mean()(X), net.mean()(X))
    assert list(posterior.decoded) == list(net.weights)


def test_weights_are_a_mapping_by_parameter_name():
    net = ks.germinate(nn.ModuleDict({"a": mlp(3, 4, 2), "b": nn.Linear(2, 2)}), over="weights")
    names = ["a.0.weight", "a.2.weight", "b.weight"]
    assert isinstance(net.weights, Mapping)
    assert list(net.weights) == list(net.weights.keys()) == names
    assert [weight.shape for weight in net.weights.values()] == [(4, 3), (2, 4), (2, 2)]
    assert {**net.weights} == dict(net.weights.items())
    assert len(net.weights) == 3
    assert "b.weight" in net.weights
    assert "b.bias" not in net.weights
    assert net.weights.get("a") is None
    with pytest.raises(KeyError, match=r"b\.bias.*a\.0\.weight"):
        net.weights["b.bias"]


def test_draws_and_gaussians_are_immutable():
    draw = ks.germinate(nn.Linear(3, 2), over="weights").draw()
    for value, name in ((draw, "skeleton"), (draw.samples["weight"].source, "mean")):
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_a_draw_as_a_value_keeps_its_own_buffers_apart():
    net = ks.germinate(convnet(), over="weights").eval()
    x = torch.randn(4, 1, 4, 4)
    draw = net.mean()
    other = ks.Draw(draw.skeleton, draw.samples, draw.aliases, {"1.running_mean": torch.full((4,), 5.0)})
    assert not torch.equal(draw(x), other(x))
    assert torch.equal(net.skeleton[1].running_mean, torch.zeros(4))


def test_weights_only_is_the_same_draw_without_graph_and_kl():
    draw = ks.germinate(mlp(3, 4, 2), over="weights").draw()
    values = draw.weights_only()
    torch.testing.assert_close(values(X), draw(X))
    assert not any(value.requires_grad for value in values.weights.values())
    assert values.num_weights == values.kl(ks.ScaleMixture()) == 0


def test_draws_without_a_generator_follow_the_global_seed_and_with_one_do_not_touch_it():
    net = ks.germinate(nn.Linear(3, 2), over="weights")
    state = torch.get_rng_state()
    net.draw(generator())
    net.mean()
    assert torch.equal(state, torch.get_rng_state())
    net.draw()
    assert not torch.equal(state, torch.get_rng_state())


# --- weights of several kinds ----------------------------------------------------------------------------------


class OneDeviation(ks.WeightDistribution):
    """A user's distribution: a mean for each weight, and one rho for all."""

    def __init__(self, weight):
        super().__init__()
        self.shape = weight.shape
        self.mu = nn.Parameter(weight.clone())
        self.rho = nn.Parameter(torch.full((1,), -2.0))

    def moments(self):
        return ks.Gaussian.from_rho(self.mu, self.rho.expand(self.shape))

    def spec(self):
        return {"shape": list(self.shape)}

    @classmethod
    def from_spec(cls, spec):
        return cls(torch.empty(spec["shape"]))


def mixed():
    """A kernel seed, a fixed one, a mean-field weight, one of a user's, and a kernel seed that is frozen in part."""
    model = mlp(3, 8, 7, 6, 5, 2)
    seed = ks.germinate(model, 0.5, min_rank=2, over="weights").weights
    makers = {
        (8, 3): lambda weight: seed["0.weight"],
        (7, 8): lambda weight: ks.germinate(model, 0.5, min_rank=2, fixed=True).weights["2.weight"],
        (6, 7): ks.MeanField,
        (5, 6): OneDeviation,
        (2, 5): lambda weight: seed["8.weight"],
    }
    net = ks.convert(model, lambda weight: makers[tuple(weight.shape)](weight))
    net.weights["0.weight"].requires_grad_(False)
    net.weights["8.weight"].mean_germinator.requires_grad_(False)
    return trained(net)


def loss_and_gradients(net, x):
    draw = net.draw(generator(1))
    loss = draw(x).square().sum() + draw.kl(ks.ScaleMixture())
    trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
    return draw, loss, dict(zip(trainable, torch.autograd.grad(loss, trainable.values()), strict=True))


def test_one_weight_of_another_kind_does_not_slow_the_others():
    assert kernels.library() is not None
    net = mixed()
    draw, loss, gradients = loss_and_gradients(net, X)
    fast = [name for name, sample in draw.samples.items() if isinstance(sample, FusedSample)]
    assert fast == ["0.weight", "4.weight", "8.weight"]
    _, expected, exact = loss_and_gradients(net.double(), X.double())  # where none is
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert "weights.8.weight.seed" in gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient.double(), exact[name], rtol=1e-4, atol=1e-4 * exact[name].abs().max().item()
        )


def test_a_net_learns():
    x = torch.randn(128, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = ks.germinate(mlp(2, 32, 32, 2), 0.5, min_rank=4, over="weights")
    loss = ks.ELBO(num_data=128, kl_weight=0.01)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        loss(net.draw(), x, y).loss.backward()
        optimizer.step()
    assert (ks.predict(net, x, samples=8).label == y).float().mean() > 0.95

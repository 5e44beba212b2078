"""Bad input gets a clear error, which names the argument, its value, what is allowed or the remedy; and no change."""

import sys

import pytest
import torch
from kinds import convnet, mlp
from torch import nn

import kernelseed as ks

NAN = float("nan")
X, Y = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
PROBS = torch.full((4, 4), 0.25)


def model():
    return mlp(3, 6, 4)


def net():
    return ks.germinate(model())


def elbo(**kwargs):
    return ks.ELBO(num_data=4, **kwargs)


def gaussian(output, target, noise="learned"):
    return ks.likelihoods.Gaussian(noise).nll(output, target)


def nan_logits():
    return torch.tensor([[0.0, NAN, 1.0]])


def never(name, parameter):
    return False


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        return self.linear(x), x


BAD = {
    # germinate and bayesianize
    "delta above one": (lambda: ks.germinate(model(), 1.5), ValueError, ["delta is 1.5", "0 < delta <= 1"]),
    "delta nan": (lambda: ks.germinate(model(), NAN), ValueError, ["delta is nan", "0 < delta <= 1"]),
    "min_rank zero": (lambda: ks.germinate(model(), min_rank=0), ValueError, ["min_rank is 0", "min_rank >= 1"]),
    "init unknown": (lambda: ks.germinate(model(), init="zeros"), ValueError, ["init is 'zeros'", "model", "glorot"]),
    "where matches nothing": (
        lambda: ks.germinate(model(), where=never),
        ValueError,
        ["where", "Sequential", "0.weight (6, 3)", "2.weight (4, 6)", "2 or more axes"],
    ),
    "only normalisation": (
        lambda: ks.germinate(nn.LayerNorm((2, 3))),
        ValueError,
        ["default choice", "LayerNorm", "weight (2, 3)"],
    ),
    "converted already": (lambda: ks.germinate(net()), TypeError, ["model", "BayesianModule", "ks.collapse(net)"]),
    "converted in part": (
        lambda: ks.germinate(nn.Sequential(nn.Linear(3, 3), net())),
        TypeError,
        ["model.1", "BayesianModule", "ks.collapse(net)"],
    ),
    # the objective
    "num_data zero": (lambda: ks.ELBO(0), ValueError, ["num_data is 0", "len(dataset)"]),
    "label too large": (
        lambda: elbo()(net().draw(), X, torch.tensor([0, 1, 2, 4])),
        ValueError,
        ["labels", "4", "4 outputs", "0 to 3", "more classes"],
    ),
    "labels not whole": (lambda: elbo()(net().draw(), X, Y.float()), TypeError, ["labels", "float32", ".long()"]),
    "nan in the input": (lambda: elbo()(net().draw(), X * NAN, Y), ValueError, ["NaN", "input"]),
    "nan in a regression": (lambda: gaussian(nan_logits(), torch.zeros(1, 3)), ValueError, ["NaN", "1 of 3"]),
    "not a tensor": (
        lambda: elbo()(ks.germinate(Pair()).draw(), X, Y),
        TypeError,
        ["tuple", "not a tensor", "Categorical(read=lambda output"],
    ),
    "targets of another shape": (
        lambda: gaussian(torch.zeros(4, 1), torch.zeros(4)),
        ValueError,
        ["target", "(4,)", "(4, 1)", "y[:, None]"],
    ),
    "odd outputs": (
        lambda: gaussian(torch.zeros(4, 3), torch.zeros(4, 1), "output"),
        ValueError,
        ["last axis", "3", 'noise="output"', "even"],
    ),
    "noise zero": (lambda: ks.likelihoods.Gaussian(0.0), ValueError, ["noise is 0.0", "positive"]),
    "noise unknown": (lambda: ks.likelihoods.Gaussian("given"), ValueError, ["noise is 'given'", "learned", "output"]),
    # priors and schedules
    "pi one": (lambda: ks.ScaleMixture(pi=1.0), ValueError, ["pi is 1.0", "0 < pi < 1", "priors.Gaussian"]),
    "sigma1 zero": (lambda: ks.ScaleMixture(sigma1=0.0), ValueError, ["sigma1 is 0.0", "positive"]),
    "std negative": (lambda: ks.priors.Gaussian(-1.0), ValueError, ["std is -1.0", "positive"]),
    "temperature negative": (lambda: ks.schedules.constant(-0.1), ValueError, ["temperature is -0.1", "0"]),
    "no batches": (lambda: ks.schedules.blundell(0), ValueError, ["num_batches is 0", "len(loader)"]),
    "no warm-up": (lambda: ks.schedules.warmup(0), ValueError, ["steps is 0", "at least one"]),
    "step missing": (
        lambda: elbo(kl_weight=ks.schedules.blundell(3))(net().draw(), X, Y),
        ValueError,
        ["step is None", "blundell", "loss(draw, x, y, step=step)"],
    ),
    # prediction
    "samples negative": (lambda: ks.predict(net(), X, samples=-1), ValueError, ["samples is -1", "0"]),
    "no data": (lambda: ks.predict(net(), []), ValueError, ["data", "no batches", "loader"]),
    "no data to update BatchNorm by": (
        lambda: ks.predict(ks.germinate(convnet()), torch.randn(2, 1, 4, 4), update_bn=[]),
        ValueError,
        ["update_bn", "no batches", "training data"],
    ),
    "no networks": (lambda: ks.predict([], X), ValueError, ["net", "empty", "at least one"]),
    "nan predicted": (lambda: ks.predict(net(), X * NAN), ValueError, ["NaN", "input"]),
    "not a tensor predicted": (
        lambda: ks.predict(ks.germinate(Pair()), X),
        TypeError,
        ["tuple", "not a tensor", "read=lambda output"],
    ),
    # export
    "collapse of a plain module": (lambda: ks.collapse(model()), TypeError, ["net", "Sequential", "BayesianModule"]),
    "collapse with another's draw": (
        lambda: ks.collapse(net(), net().draw()),
        ValueError,
        ["draw", "another network", "collapse(net, net.draw())"],
    ),
    # models
    "stem unknown": (lambda: ks.models.resnet18(stem="vit"), ValueError, ["stem is 'vit'", "imagenet", "cifar"]),
    "no classes": (lambda: ks.models.resnet18(0), ValueError, ["num_classes is 0", "at least 1"]),
    "dropout of all": (lambda: ks.models.resnet18(dropout=1.0), ValueError, ["dropout is 1.0", "0 <= dropout < 1"]),
    # metrics
    "bins zero": (lambda: ks.metrics.ece(PROBS, Y, bins=0), ValueError, ["bins", "0"]),
    "probabilities that do not sum to one": (lambda: ks.metrics.nll(2 * PROBS, Y), ValueError, ["probs", "sum", "2"]),
    "logits for probabilities": (lambda: ks.metrics.ece(PROBS - 1, Y), ValueError, ["probs"]),
    "nan in probabilities": (lambda: ks.metrics.accuracy(PROBS * NAN, Y), ValueError, ["probs", "nan", "[0, 1]"]),
    "labels out of range": (lambda: ks.metrics.nll(PROBS, Y + 1), ValueError, ["labels", "4", "3"]),
}


@pytest.mark.parametrize(("call", "error", "fragments"), BAD.values(), ids=BAD)
def test_the_error_says_what_was_wrong_and_what_to_do(call, error, fragments):
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, ks.KernelseedError)
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message
    assert len(message) < 400


def unchanged(module, action, error):
    """The module's parameters, buffers and modes are the same after the error."""
    module.train()
    before = {name: (id(value), value.tolist()) for name, value in module.state_dict(keep_vars=True).items()}
    modes = [m.training for m in module.modules()]
    with pytest.raises(error):
        action(module)
    assert before == {name: (id(value), value.tolist()) for name, value in module.state_dict(keep_vars=True).items()}
    assert modes == [m.training for m in module.modules()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


@pytest.mark.parametrize(
    "action",
    [
        lambda m: ks.germinate(m, 2.0),
        lambda m: ks.germinate(m, where=never),
        lambda m: ks.predict(m, []),
        lambda m: ks.predict(m, torch.full((3, 1, 4, 4), NAN)),
        lambda m: ks.predict(m, torch.randn(3, 1, 4, 4), update_bn=[]),
    ],
)
def test_a_plain_module_is_as_before(action):
    unchanged(convnet(), action, ValueError)


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (lambda n: ks.germinate(n), TypeError),
        (lambda n: ks.predict(n, iter(())), ValueError),
        (lambda n: ks.predict(n, torch.full((3, 1, 4, 4), NAN)), ValueError),
        (lambda n: ks.predict(n, torch.randn(3, 1, 4, 4), update_bn=iter(())), ValueError),
        (lambda n: ks.collapse(n, net().draw()), ValueError),
    ],
)
def test_a_bayesian_module_is_as_before(action, error):
    unchanged(ks.germinate(convnet()), action, error)


def test_a_where_that_raises_is_the_users_own_error():
    def where(name, parameter):
        raise KeyError(name)

    unchanged(model(), lambda m: ks.germinate(m, where=where), KeyError)


def test_a_subpackage_whose_package_is_missing_says_how_to_get_it(monkeypatch):
    ks.hub  # noqa: B018  (loaded, so that there is something to take away)
    monkeypatch.delattr(ks, "hub")
    monkeypatch.delitem(sys.modules, "kernelseed.hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"kernelseed.hub needs .*huggingface_hub.*pip install"):
        ks.hub  # noqa: B018

"""Bad arguments: one line that says what it is, what is allowed or what to do; and nothing has changed."""

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from kinds import convnet, mlp
from torch import nn

import kernelseed as ks
from kernelseed.errors import ArgumentError, ArgumentTypeError, KernelseedError

NAN = float("nan")
X, Y = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
IMAGES = torch.randn(3, 1, 4, 4)


def model():
    return mlp(3, 6, 4)


def net():
    return ks.germinate(model(), over="weights")


def elbo(x=X, y=Y, step=None, **kwargs):
    return ks.ELBO(num_data=4, **kwargs)(net().draw(), x, y, step)


def classes(output, labels, **kwargs):
    return ks.likelihoods.Categorical(**kwargs).nll(output, labels)


def gaussian(output, target, noise="learned"):
    return ks.likelihoods.Gaussian(noise).nll(output, target)


def broken():
    found = model()
    nn.init.constant_(found[0].weight, math.nan)
    return found


def never(name, parameter):
    return False


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        return self.linear(x), x


VALUES = {
    # conversion
    "delta zero": (lambda: ks.germinate(model(), 0.0, over="weights"), ["delta is 0.0", "0 < delta <= 1"]),
    "delta a percentage": (lambda: ks.germinate(model(), 25, over="weights"), ["delta is 25", "0 < delta <= 1"]),
    "delta nan": (lambda: ks.germinate(model(), NAN, over="weights"), ["delta is nan", "0 < delta <= 1"]),
    "min_rank zero": (
        lambda: ks.germinate(model(), min_rank=0, over="weights"),
        ["min_rank is 0", "must be at least 1"],
    ),
    "init unknown": (
        lambda: ks.germinate(model(), init="zeros", over="weights"),
        ["init is 'zeros'", "'model'", "'glorot'"],
    ),
    "rho_offset infinite": (lambda: ks.bayesianize(model(), rho_offset=math.inf), ["rho_offset is inf", "finite"]),
    "where matches nothing": (
        lambda: ks.bayesianize(model(), where=never),
        ["where", "Sequential", "0.weight (6, 3)", "0.bias (6,)", "2.weight (4, 6)", "2.bias (4,)", "1 or more axes"],
    ),
    "weights that are not numbers": (
        lambda: ks.bayesianize(broken()),
        ["0.weight has values that are infinite or no numbers", "where="],
    ),
    "nothing to match": (lambda: ks.germinate(nn.ReLU(), over="weights"), ["ReLU", "2 or more axes", "none"]),
    "only normalisation": (
        lambda: ks.germinate(nn.LayerNorm((2, 3)), over="weights"),
        ["default choice", "LayerNorm", "(2, 3)"],
    ),
    # models
    "stem unknown": (lambda: ks.models.resnet18(stem="vit"), ["stem is 'vit'", "imagenet", "cifar"]),
    "no classes": (lambda: ks.models.resnet18(0), ["num_classes is 0", "at least 1"]),
    "dropout of all": (lambda: ks.models.resnet18(dropout=1.0), ["dropout is 1.0", "dropout < 1"]),
    # the objective
    "num_data zero": (lambda: ks.ELBO(0), ["num_data is 0", "len(dataset)"]),
    "num_data nan": (lambda: ks.ELBO(NAN), ["num_data is nan", "len(dataset)"]),
    "kl_weight negative": (lambda: ks.ELBO(4, kl_weight=-0.1), ["is -0.1", "weight of the KL", "0 (none) or more"]),
    "kl_weight nan": (lambda: ks.ELBO(4, kl_weight=NAN), ["is nan", "finite"]),
    "no batches": (lambda: ks.schedules.blundell(0), ["num_batches is 0", "len(loader)"]),
    "batches unknown": (
        lambda: elbo(kl_weight=ks.schedules.blundell(), step=0),
        ["num_batches is missing", "len(loader)"],
    ),
    "no warm-up": (lambda: ks.schedules.warmup(0), ["steps is 0", "at least one"]),
    "no noise at all": (lambda: ks.schedules.settled(0), ["noise is 0", "above 0"]),
    "a negative factor": (lambda: ks.schedules.scaled(-1), ["factor is -1", "0 (none) or more"]),
    "step missing": (lambda: elbo(kl_weight=ks.schedules.blundell(3)), ["step is None", "blundell", "step=step"]),
    "step negative": (lambda: elbo(kl_weight=ks.schedules.warmup(3), step=-1), ["step is -1", "counted from 0"]),
    "pi one": (lambda: ks.ScaleMixture(pi=1.0), ["pi is 1.0", "0 < pi < 1", "priors.Gaussian"]),
    "sigma1 zero": (lambda: ks.ScaleMixture(sigma1=0.0), ["sigma1 is 0.0", "positive"]),
    "sigma2 nan": (lambda: ks.ScaleMixture(sigma2=NAN), ["sigma2 is nan", "positive"]),
    "std negative": (lambda: ks.priors.Gaussian(-1.0), ["std is -1.0", "positive"]),
    # likelihoods
    "label too large": (lambda: elbo(y=Y + 1), ["labels has 4", "4 outputs", "0 to 3", "more classes"]),
    "label negative": (lambda: elbo(y=Y - 1), ["labels has -1", "0 to 3"]),
    "labels one-hot": (lambda: elbo(y=F.one_hot(Y).float()), ["labels", "(4, 4)", "shape (4,)", "labels.argmax(1)"]),
    "labels a column": (lambda: elbo(y=Y[:, None]), ["labels", "(4, 1)", "shape (4,)", "labels.flatten()"]),
    "no class axis": (lambda: classes(torch.zeros(4), Y), ["shape (4,)", "axis 1", "(batch, classes)"]),
    "nan in the input": (lambda: elbo(x=X * NAN), ["NaN", "16 of 16", "input", "learning rate"]),
    "targets of another shape": (
        lambda: gaussian(torch.zeros(4, 1), torch.zeros(4)),
        ["target", "(4,)", "(4, 1)", "y[:, None]"],
    ),
    "odd outputs": (
        lambda: gaussian(torch.zeros(4, 3), torch.zeros(4, 1), "output"),
        ["last axis", "3", 'noise="output"', "even"],
    ),
    "noise zero": (lambda: ks.likelihoods.Gaussian(0.0), ["noise is 0.0", "positive"]),
    "noise infinite": (lambda: ks.likelihoods.Gaussian(math.inf), ["noise is inf", "finite"]),
    "noise unknown": (lambda: ks.likelihoods.Gaussian("given"), ["noise is 'given'", '"learned"', '"output"']),
    # prediction
    "samples negative": (lambda: ks.predict(net(), X, samples=-1), ["samples is -1", "0 for the posterior mean"]),
    "batch_size zero": (lambda: ks.predict(net(), X, batch_size=0), ["batch_size is 0", "at least one"]),
    "members of 4 and 5 classes": (
        lambda: ks.predict([mlp(3, 4), mlp(3, 5)], X),
        ["(4, 4) and (4, 5)", "same classes"],
    ),
    "no data": (lambda: ks.predict(net(), iter(())), ["data yields no batches", "loader", "again"]),
    "no data to update_bn": (lambda: ks.predict(net(), X, update_bn=[]), ["update_bn yields no batches", "training"]),
    "no networks": (lambda: ks.predict([], X), ["net is an empty sequence", "at least one"]),
    "a Bayesian part": (
        lambda: ks.predict(nn.Sequential(nn.Linear(3, 3), net()), X),
        ["net.1 is a BayesianModule", "where=", "samples=0"],
    ),
    "nan predicted": (lambda: ks.predict(net(), X * NAN), ["NaN", "input"]),
    # export
    "another's draw": (
        lambda: ks.collapse(net(), net().draw()),
        ["draw", "another network", "collapse(net, net.draw())"],
    ),
}
TYPES = {
    "converted already": (
        lambda: ks.germinate(net(), over="weights"),
        ["model is a BayesianModule", "ks.collapse(net)"],
    ),
    "converted in part": (
        lambda: ks.bayesianize(nn.Sequential(nn.Linear(3, 3), net())),
        ["model.1 is a BayesianModule", "ks.collapse(net)"],
    ),
    "kl_weight a word": (lambda: ks.ELBO(4, kl_weight="automatic"), ["'automatic'", "schedules.settled()"]),
    "kl_weight a flag": (lambda: ks.ELBO(4, kl_weight=True), ["kl_weight is True", "a number or a schedule"]),
    "kl_weight not called": (
        lambda: ks.ELBO(4, kl_weight=ks.schedules.automatic),
        ["kl_weight is the function schedules.automatic", "schedules.automatic(...)"],
    ),
    "warm-up to a word": (lambda: ks.schedules.warmup(3, "uniform"), ["'uniform'", "a number or a schedule"]),
    "loss of a network": (lambda: ks.ELBO(4)(net(), X, Y), ["draw is a BayesianModule", "net.draw()"]),
    "loss of an output": (lambda: ks.ELBO(4).of(model()(X), Y, net()), ["draw is a BayesianModule", "net.draw()"]),
    "loss without labels": (lambda: ks.ELBO(4).with_nll(None, net().draw()), ["nll is a NoneType", "labels"]),
    "no model": (lambda: ks.germinate(None), ["model is a NoneType", "it must be a Module"]),
    "a class for a model": (lambda: ks.bayesianize(nn.Linear), ["model is a type", "an instance"]),
    "where a name": (
        lambda: ks.germinate(model(), where="0.weight"),
        ["where is '0.weight'", "lambda name, parameter"],
    ),
    "prior a network": (lambda: ks.ELBO(4, net()), ["prior is a BayesianModule", "net.as_prior()"]),
    "scores of probabilities": (lambda: ks.outlier_scores(torch.ones(2, 3)), ["prediction is a Tensor", "ks.predict"]),
    "labels not whole": (lambda: elbo(y=Y.float()), ["labels", "float32", "labels.long()"]),
    "not a tensor": (
        lambda: ks.predict(ks.germinate(Pair(), over="weights"), X),
        ["tuple", "not a tensor", "Categorical(read=lambda output"],
    ),
    "data and net swapped": (lambda: ks.predict(X, net()), ["net", "Tensor", "a module, a draw, or a list"]),
    "networks in a generator": (lambda: ks.predict((n for n in [net()]), X), ["net", "generator", "list"]),
    "samples half": (lambda: ks.predict(net(), X, samples=2.5), ["samples is 2.5", "whole number"]),
    "samples a word": (lambda: ks.predict(net(), X, samples="all"), ["samples is 'all'", "whole number"]),
    "batch_size true": (lambda: ks.predict(net(), X, batch_size=True), ["batch_size is True", "whole number"]),
    "seed half": (lambda: ks.predict(net(), X, seed=0.5), ["seed is 0.5", "whole number"]),
    "data a number": (lambda: ks.predict(net(), 3), ["data is a int", "a tensor, or a loader"]),
    "one batch for batches": (lambda: ks.predict(net(), {"input": X}), ["mapping", "one batch", "[data]"]),
    "collapse of a plain module": (lambda: ks.collapse(model()), ["net is a Sequential", "BayesianModule"]),
}
CASES = [
    pytest.param(call, error, fragments, id=name)
    for error, cases in ((ArgumentError, VALUES), (ArgumentTypeError, TYPES))
    for name, (call, fragments) in cases.items()
]


@pytest.mark.parametrize(("call", "error", "fragments"), CASES)
def test_the_error_says_what_was_wrong_and_what_to_do(call, error, fragments):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message
    assert "\n" not in message
    assert len(message) < 400
    assert message.endswith(".")


@pytest.mark.parametrize(
    "action",
    [
        lambda n: ks.germinate(n, where=never, over="weights"),
        lambda n: ks.predict(n, iter(())),
        lambda n: ks.predict(n, IMAGES * NAN),
        lambda n: ks.predict(n, IMAGES, update_bn=iter(())),
    ],
    ids=["germinate", "no data", "nan", "update_bn"],
)
@pytest.mark.parametrize("make", [convnet, lambda: ks.germinate(convnet(), over="weights")], ids=["plain", "bayesian"])
def test_a_module_is_as_before(make, action):
    module = make().train()
    list(module.modules())[-1].eval()  # a mixture of modes

    def state():
        tensors = module.state_dict(keep_vars=True)
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
        return {n: (id(t), t.tolist()) for n, t in tensors.items()}, [m.training for m in module.modules()], hooks

    before = state()
    with pytest.raises(KernelseedError):
        action(module)
    assert state() == before


def test_a_where_that_raises_is_the_users_own_error():
    def where(name, parameter):
        raise KeyError(name)

    with pytest.raises(KeyError, match=r"0\.weight"):
        ks.germinate(model(), where=where, over="weights")


def test_a_subpackage_whose_package_is_missing_says_how_to_get_it(monkeypatch):
    ks.hub  # noqa: B018  (loaded, so that there is something to take away)
    monkeypatch.delattr(ks, "hub")
    monkeypatch.delitem(sys.modules, "kernelseed.hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ks.errors.MissingPackageError, match=r"kernelseed.hub needs .*huggingface_hub.*pip install"):
        ks.hub  # noqa: B018

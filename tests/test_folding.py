"""BatchNorm folded into convolutions: the same function in eval mode, and only where nothing reads between them."""

import copy

import pytest
import torch
from torch import nn

import kernelseed as ks
from kernelseed.errors import ArgumentError, ArgumentTypeError


def unlike(model):
    """The model with statistics and scales that are not those of a new BatchNorm."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.eval()


def norms(model):
    return sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def check_folds(model, x, left=0):
    unlike(model)
    before = copy.deepcopy(model)
    folded = ks.fold_bn(model, x)
    assert folded is model
    assert norms(folded) == left
    with torch.no_grad():
        torch.testing.assert_close(folded(x), before(x), rtol=1e-4, atol=1e-4)


MODELS = {
    "one axis": lambda: (nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), torch.randn(2, 3, 7)),
    "three axes": lambda: (nn.Sequential(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4)), torch.randn(2, 3, 5, 5, 5)),
    "grouped, without affine": lambda: (
        nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, padding=1, padding_mode="reflect"), nn.BatchNorm2d(6, affine=False)),
        torch.randn(2, 4, 5, 5),
    ),
    "trimmed": lambda: (
        ks.fast.trim(nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6))),
        torch.randn(2, 4, 1, 1),
    ),
    "resnet": lambda: (ks.models.resnet18(10, 1, width=8), torch.randn(2, 1, 28, 28)),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_same_function_without_batch_norm(make):
    check_folds(*make())


def test_a_transformers_resnet():
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        num_channels=3, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = transformers.ResNetForImageClassification(config)

        def forward(self, x):
            return self.net(x).logits

    check_folds(Logits(), torch.randn(2, 3, 32, 32))


class Between(nn.Module):
    """Something else reads what the convolution gives: `how` says what."""

    def __init__(self, how):
        super().__init__()
        self.how, self.conv, self.norm, self.other = how, nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.BatchNorm2d(2)

    def forward(self, x):
        y = self.conv(x)
        if self.how == "sum":
            return self.norm(y) + y
        if self.how == "view":
            return self.norm(y) + y.flatten(1).sum()
        if self.how == "activation":
            return self.norm(y.relu())
        if self.how == "two norms":
            return self.norm(y) + self.other(y)
        if self.how == "twice":
            return self.norm(self.conv(y))
        if self.how == "norm twice":
            return self.norm(self.norm(y))
        if self.how == "in place":
            return self.norm(y) * y.mul_(2)
        if self.how == "by name":
            return self.norm(y) + self.other(input=y)
        if self.how == "weight":
            return self.norm(y) + nn.functional.conv2d(x, self.conv.weight)
        if self.how == "norm's weight":
            return self.norm(y) * self.norm.weight.sum()
        return self.norm(y), y


HOWS = ["sum", "view", "activation", "two norms", "twice", "norm twice", "in place", "output"]


@pytest.mark.parametrize("how", [*HOWS, "by name", "weight", "norm's weight"])
def test_what_something_else_reads_stays(how):
    check_folds(Between(how), torch.randn(2, 2, 3, 3), left=2)


def test_shared_weights_hooks_and_statistics_of_the_batch_stay():
    shared = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1))
    shared[2].weight = shared[0].weight
    hooked = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    hooked[0].register_forward_hook(lambda module, given, output: output * 2)
    batch = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2, track_running_stats=False))
    for model in (shared, hooked, batch):
        check_folds(model, torch.randn(4, 2, 3, 3), left=1)


@pytest.mark.parametrize("export", [ks.collapse, ks.factorise])
def test_an_exported_network_is_folded(export):
    net = ks.germinate(unlike(ks.models.resnet18(10, 1, width=32)), 0.25, over="weights")
    x = torch.randn(2, 1, 28, 28)
    plain = export(net, fold_bn=True, example=x)
    assert norms(plain) == 0
    assert not plain.training
    with torch.no_grad():
        torch.testing.assert_close(plain(x), ks.collapse(net).eval()(x), rtol=1e-3, atol=1e-3)
    with pytest.raises(ArgumentError, match=r"fold_bn is True, but example is None; give an input"):
        export(net, fold_bn=True)


def test_the_fastest_single_image_goes_through_torch_export():
    """The last step of docs/performance.md."""
    net = ks.germinate(unlike(ks.models.resnet18(10, 1, width=8)), 0.25, over="weights")
    image = torch.randn(1, 1, 28, 28).to(memory_format=torch.channels_last)
    plain = ks.factorise(net, fold_bn=True, example=image).to(memory_format=torch.channels_last)
    program = torch.export.export(plain, (image,)).module()
    torch.testing.assert_close(program(image), ks.collapse(net).eval()(image), rtol=1e-3, atol=1e-3)


def test_drawn_weights_are_not_folded():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    for net in (ks.germinate(model), nn.Sequential(ks.bayesianize(model, where=lambda name, p: name == "1.weight"))):
        with pytest.raises(ArgumentTypeError, match=r"is a BayesianModule.*ks.collapse\(net, fold_bn=True, example="):
            ks.fold_bn(net, torch.randn(2, 3, 3, 3))

"""Recipes: a model as JSON and back, and descriptions that can't be."""

import doctest
import json

import pytest
import torch
from torch import nn

from kernelseed.errors import ArgumentError, ArgumentTypeError
from kernelseed.fast.taps import TrimmedConv2d, trim
from kernelseed.models import from_recipe, mlp, recipe, recipes, resnet18, resnet34, resnet50


def test_the_recipe_is_the_json_of_all_releases():
    """Networks on disk are read by it."""
    model = resnet18(3, 1, stem="cifar", width=4, dropout=0.1)
    described = {"name": "resnet18", "num_classes": 3, "in_channels": 1, "stem": "cifar", "width": 4, "dropout": 0.1}
    assert json.dumps(recipe(model)) == json.dumps(described)
    assert json.dumps(recipe(trim(model))) == json.dumps({**described, "trimmed": True})
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    assert recipe(model)["dropout"] == 0.3


SMALL = {
    "resnet18": lambda: resnet18(3, 1, stem="cifar", width=4),
    "resnet34": lambda: resnet34(3, 1, stem="small", width=4),
    "resnet50": lambda: resnet50(3, 1, stem="small", width=4),
    "mlp": lambda: mlp(3, 1, (8, 8), widths=(5,)),
    "trimmed": lambda: trim(resnet18(3, 1, stem="cifar", width=4)),
}


def test_no_model_is_left_out():
    assert set(recipes.BUILDERS) == set(SMALL) - {"trimmed"}


@pytest.mark.parametrize("name", SMALL)
def test_a_model_is_built_again(name):
    model = SMALL[name]().eval()
    twin = from_recipe(json.loads(json.dumps(recipe(model)))).eval()
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(twin(x), model(x))
    assert any(isinstance(m, TrimmedConv2d) for m in twin.modules()) == (name == "trimmed")


def test_any_other_model_has_no_recipe():
    assert recipe(nn.Linear(2, 2)) is None
    assert recipe(nn.Sequential(resnet18(width=2))) is None


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (None, ArgumentError, "none of kernelseed.models"),
        (["resnet18"], ArgumentTypeError, "the recipe is a list; it must be a dict"),
        ({}, ArgumentError, "model None is unknown; this version has mlp, resnet18,"),
        ({"name": "os.system"}, ArgumentError, "model 'os.system' is unknown"),
        ({"name": ["resnet18"]}, ArgumentError, r"model \['resnet18'\] is unknown"),
        ({"name": "resnet18", "evil": 0}, ArgumentError, "argument 'evil' is unknown; resnet18 takes num_classes, in_"),
        ({"name": "resnet18", "trimmed": "yes"}, ArgumentTypeError, "trimmed is 'yes'; it must be true or false"),
        ({"name": "resnet18", "width": "4"}, ArgumentTypeError, "width is '4'; it must be an int of at least 1"),
        ({"name": "resnet18", "num_classes": 2.5}, ArgumentTypeError, "num_classes is 2.5; it must be an int"),
        ({"name": "resnet18", "in_channels": None}, ArgumentTypeError, "in_channels is None; it must be an int"),
        ({"name": "resnet18", "width": True}, ArgumentTypeError, "width is True; it must be an int"),
        ({"name": "resnet18", "width": 0}, ArgumentError, "width is 0; it must be at least 1"),
        ({"name": "resnet18", "stem": {}}, ArgumentError, "stem is {}; allowed are"),
        ({"name": "resnet18", "dropout": "0"}, ArgumentTypeError, "dropout is '0'; it must be a number"),
        ({"name": "resnet18", "dropout": float("nan")}, ArgumentError, "dropout is nan; .*0 <= dropout < 1"),
    ],
)
def test_recipes_that_can_not_be(given, error, message):
    with pytest.raises(error, match=message):
        from_recipe(given)


def test_the_examples_run():
    failed, attempted = doctest.testmod(recipes)
    assert attempted
    assert not failed

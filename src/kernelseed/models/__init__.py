"""Networks to begin with, one file a family, and models of your own. Parameter names are torchvision's.

resnet18, resnet34, resnet50, mlp   the registry, `BUILDERS` by name
recipe, from_recipe                 a model of ours as JSON, and back
WithNoise                           a regression network with one learned noise
build                               any model, of ours or of yours, by its recipe
"""

from kernelseed.models.noisy import WithNoise
from kernelseed.models.own import (
    FACTS,
    GIVEN,
    Model,
    agreed,
    build,
    call_function,
    import_function,
    is_path,
    own_recipe,
)
from kernelseed.models.perceptron import MLP, mlp
from kernelseed.models.recipes import BUILDERS, from_recipe, recipe
from kernelseed.models.resnet import STEMS, ResNet, resnet18, resnet34, resnet50

__all__ = [
    "BUILDERS",
    "FACTS",
    "GIVEN",
    "MLP",
    "STEMS",
    "Model",
    "ResNet",
    "WithNoise",
    "agreed",
    "build",
    "call_function",
    "from_recipe",
    "import_function",
    "is_path",
    "mlp",
    "own_recipe",
    "recipe",
    "resnet18",
    "resnet34",
    "resnet50",
]

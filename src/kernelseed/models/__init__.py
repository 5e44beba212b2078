"""Networks to begin with. Parameter names are torchvision's, so its checkpoints load."""

from kernelseed.models.recipes import from_recipe, recipe
from kernelseed.models.resnet import ResNet18, resnet18

__all__ = ["ResNet18", "from_recipe", "recipe", "resnet18"]

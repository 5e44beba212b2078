"""Optimizers that learn a Gaussian posterior while they train: Vadam and VOGN."""

from .vadam import Vadam
from .vogn import VOGN

__all__ = ["VOGN", "Vadam"]

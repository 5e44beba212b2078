"""Optimizers that learn a Gaussian posterior while they train: Vadam and VOGN."""

from kernelseed.optim.vadam import Vadam
from kernelseed.optim.vogn import VOGN

__all__ = ["VOGN", "Vadam"]

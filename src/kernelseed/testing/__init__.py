"""A pytest suite for weight distributions of your own: the contract that each must satisfy.

class TestMine(ks.testing.WeightDistributionContract):
    def make(self, weight):
        return Mine(weight)
"""

from kernelseed.testing.contract import SHAPES, WeightDistributionContract
from kernelseed.testing.fit import check_standard_normal, kolmogorov_smirnov
from kernelseed.testing.kinds import KINDS, Kind

__all__ = ["KINDS", "SHAPES", "Kind", "WeightDistributionContract", "check_standard_normal", "kolmogorov_smirnov"]

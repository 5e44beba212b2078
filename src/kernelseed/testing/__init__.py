"""For those who write a weight distribution of their own: the contract that it has to keep, as a pytest suite.

class TestMine(ks.testing.WeightDistributionContract):
    def make(self, weight):
        return Mine(weight)
"""

from kernelseed.testing.contract import SHAPES, WeightDistributionContract
from kernelseed.testing.fit import check_standard_normal, kolmogorov_smirnov
from kernelseed.testing.kinds import KINDS, Kind

__all__ = ["KINDS", "SHAPES", "Kind", "WeightDistributionContract", "check_standard_normal", "kolmogorov_smirnov"]

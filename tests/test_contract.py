"""The contract suite, for the distributions of the library and for the one of the example."""

from k_tied_normal import TestKTiedNormal  # noqa: F401

import kernelseed as ks
from kernelseed.core.weights import INITS, seed_rank


class TestMeanField(ks.testing.WeightDistributionContract):
    def make(self, weight):
        return ks.MeanField(weight, rho_offset=-2.0)


class TestKernelSeed(ks.testing.WeightDistributionContract):
    def make(self, weight):
        seed, germinator = INITS["model"](weight, seed_rank(weight.shape, 0.5, 1))
        return ks.KernelSeed(seed, germinator, -2.0, weight.shape)


class TestFixedKernelSeed(ks.testing.WeightDistributionContract):
    fixed = True

    def make(self, weight):
        return ks.FixedKernelSeed(*INITS["model"](weight, seed_rank(weight.shape, 0.5, 1)), weight.shape)

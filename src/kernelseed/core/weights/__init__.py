"""Weight distributions, one class per file."""

from kernelseed.core.weights.base import WeightDistribution
from kernelseed.core.weights.factors import INITS, identity_factors
from kernelseed.core.weights.fixed_kernel_seed import FixedKernelSeed
from kernelseed.core.weights.gaussian_factors import GaussianFactors, rho_of_share
from kernelseed.core.weights.kernel_seed import KernelSeed
from kernelseed.core.weights.local_sample import sample_locally
from kernelseed.core.weights.mean_field import MeanField
from kernelseed.core.weights.pruned import Pruned
from kernelseed.core.weights.together import decode_together, sample_together

__all__ = [
    "INITS",
    "FixedKernelSeed",
    "GaussianFactors",
    "KernelSeed",
    "MeanField",
    "Pruned",
    "WeightDistribution",
    "decode_together",
    "identity_factors",
    "rho_of_share",
    "sample_locally",
    "sample_together",
]

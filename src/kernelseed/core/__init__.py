"""The core: distributions, weights, networks, training losses and prediction. It needs only torch.

distributions, noise, priors        values: a Gaussian, a sample with its KL, the noise of a draw
posterior_prior                     a posterior as the next prior
weights                             MeanField, KernelSeed, FixedKernelSeed: what is learned
network, twin, conversion           skeleton + weights; a draw is a value
likelihoods, schedules, objective   the loss
prediction, predictive              averages over draws
pruning, shrinking                  zeros for weights; fewer channels of seeds
export, storage                     a plain module again; files
"""

from kernelseed.core import likelihoods, priors, schedules
from kernelseed.core.batchnorm import batch_norms
from kernelseed.core.conversion import Where, bayesianize, convert, places
from kernelseed.core.distributions import Gaussian, GaussianSample, Sample, inverse_softplus, softplus
from kernelseed.core.dropout import CHANNELWISE, ELEMENTWISE
from kernelseed.core.export import collapse, factorise
from kernelseed.core.files import (
    disk_file,
    explained,
    lock_folder,
    make_folder,
    parse_json,
    read_json,
    read_text,
    remove_abandoned,
    to_json,
    whole_folder,
    whole_or_nothing,
    write_json,
    write_text,
)
from kernelseed.core.folding import fold_bn
from kernelseed.core.likelihoods import Likelihood
from kernelseed.core.memory import gigabytes, memory_limit
from kernelseed.core.names import cell, printable, utf8_path
from kernelseed.core.network import BayesianModule, Draw, Posterior
from kernelseed.core.noise import Noise
from kernelseed.core.objective import ELBO, Terms, call
from kernelseed.core.outliers import OF_DRAWS, SCORES, outlier_scores
from kernelseed.core.posterior_prior import PosteriorPrior
from kernelseed.core.prediction import make_draws, predict
from kernelseed.core.predictive import Classification, Regression
from kernelseed.core.priors import Prior, ScaleMixture
from kernelseed.core.pruning import ORDERS, needed_parameters, prune
from kernelseed.core.ranks import ALLOCATIONS
from kernelseed.core.schedules import Moment, Schedule
from kernelseed.core.seed_networks import BUDGET, DELTA, FACTOR_SIGMAS, MIN_RANK, germinate
from kernelseed.core.seeds import derive_seed, generator_for
from kernelseed.core.shrinking import plain_parameters, shrink
from kernelseed.core.storage import CONFIG, WEIGHTS, describe, load, read_weights, save, write_weights
from kernelseed.core.twin import call_with
from kernelseed.core.weights import (
    INITS,
    FixedKernelSeed,
    GaussianFactors,
    KernelSeed,
    MeanField,
    Pruned,
    WeightDistribution,
)

__all__ = [
    "ALLOCATIONS",
    "BUDGET",
    "CHANNELWISE",
    "CONFIG",
    "DELTA",
    "ELBO",
    "ELEMENTWISE",
    "FACTOR_SIGMAS",
    "INITS",
    "MIN_RANK",
    "OF_DRAWS",
    "ORDERS",
    "SCORES",
    "WEIGHTS",
    "BayesianModule",
    "Classification",
    "Draw",
    "FixedKernelSeed",
    "Gaussian",
    "GaussianFactors",
    "GaussianSample",
    "KernelSeed",
    "Likelihood",
    "MeanField",
    "Moment",
    "Noise",
    "Posterior",
    "PosteriorPrior",
    "Prior",
    "Pruned",
    "Regression",
    "Sample",
    "ScaleMixture",
    "Schedule",
    "Terms",
    "WeightDistribution",
    "Where",
    "batch_norms",
    "bayesianize",
    "call",
    "call_with",
    "cell",
    "collapse",
    "convert",
    "derive_seed",
    "describe",
    "disk_file",
    "explained",
    "factorise",
    "fold_bn",
    "generator_for",
    "germinate",
    "gigabytes",
    "inverse_softplus",
    "likelihoods",
    "load",
    "lock_folder",
    "make_draws",
    "make_folder",
    "memory_limit",
    "needed_parameters",
    "outlier_scores",
    "parse_json",
    "places",
    "plain_parameters",
    "predict",
    "printable",
    "priors",
    "prune",
    "read_json",
    "read_text",
    "read_weights",
    "remove_abandoned",
    "save",
    "schedules",
    "shrink",
    "softplus",
    "to_json",
    "utf8_path",
    "whole_folder",
    "whole_or_nothing",
    "write_json",
    "write_text",
    "write_weights",
]

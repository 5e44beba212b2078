"""The core: distributions, weights, networks, training losses and prediction. It needs only torch.

distributions, noise, priors        values: a Gaussian, a sample with its KL, the noise of a draw
posterior_prior                     a posterior as the next prior
weights                             GaussianFactors, KernelSeed, FixedKernelSeed, MeanField, Pruned: what is learned
network, twin, conversion           skeleton + weights; a draw is a value
likelihoods, schedules, objective   the loss
prediction, predictive              averages over draws
pruning, shrinking                  zeros for weights; fewer channels of seeds
export, storage                     a plain module again; files
"""

from kernelseed.core import likelihoods, priors, schedules
from kernelseed.core.arguments import check_count, check_kind, check_share
from kernelseed.core.batchnorm import batch_norms
from kernelseed.core.conversion import Where, bayesianize, convert, deep_copy, places
from kernelseed.core.distributions import Gaussian, GaussianSample, Sample, inverse_softplus, softplus
from kernelseed.core.dropout import CHANNELWISE, ELEMENTWISE
from kernelseed.core.export import collapse, factorise
from kernelseed.core.folding import fold_bn
from kernelseed.core.likelihoods import Likelihood
from kernelseed.core.network import BayesianModule, Draw, Posterior
from kernelseed.core.noise import Noise
from kernelseed.core.objective import ELBO, Terms, call
from kernelseed.core.outliers import OF_DRAWS, SCORES, outlier_scores
from kernelseed.core.posterior_prior import PosteriorPrior
from kernelseed.core.prediction import evaluating, make_draws, predict
from kernelseed.core.predictive import Classification, Regression
from kernelseed.core.priors import Prior, ScaleMixture
from kernelseed.core.pruning import ORDERS, is_prunable, needed_parameters, prune, whole
from kernelseed.core.ranks import ALLOCATIONS, seed_rank
from kernelseed.core.rho_gaussian import RHO_OFFSET
from kernelseed.core.schedules import Moment, Schedule
from kernelseed.core.seed_networks import BUDGET, DEFAULT_OVER, DELTA, FACTOR_SIGMAS, MIN_RANK, OVER, germinate
from kernelseed.core.seeds import derive_seed, generator_for
from kernelseed.core.shrinking import least_budget, plain_parameters, shrink
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
    identity_factors,
)

__all__ = [
    "ALLOCATIONS",
    "BUDGET",
    "CHANNELWISE",
    "CONFIG",
    "DEFAULT_OVER",
    "DELTA",
    "ELBO",
    "ELEMENTWISE",
    "FACTOR_SIGMAS",
    "INITS",
    "MIN_RANK",
    "OF_DRAWS",
    "ORDERS",
    "OVER",
    "RHO_OFFSET",
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
    "check_count",
    "check_kind",
    "check_share",
    "collapse",
    "convert",
    "deep_copy",
    "derive_seed",
    "describe",
    "evaluating",
    "factorise",
    "fold_bn",
    "generator_for",
    "germinate",
    "identity_factors",
    "inverse_softplus",
    "is_prunable",
    "least_budget",
    "likelihoods",
    "load",
    "make_draws",
    "needed_parameters",
    "outlier_scores",
    "places",
    "plain_parameters",
    "predict",
    "priors",
    "prune",
    "read_weights",
    "save",
    "schedules",
    "seed_rank",
    "shrink",
    "softplus",
    "whole",
    "write_weights",
]

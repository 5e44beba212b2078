"""The contract suite, for the distributions of the library and for the one of the example."""

import torch
from k_tied_normal import TestKTiedNormal  # noqa: F401
from kinds import generator

import kernelseed as ks
from kernelseed.core.ranks import seed_rank
from kernelseed.core.weights import INITS
from kernelseed.testing.contract import PRIOR, noise_of


class TestMeanField(ks.testing.WeightDistributionContract):
    def make(self, weight):
        return ks.MeanField(weight, rho_offset=-2.0)


class TestKernelSeed(ks.testing.WeightDistributionContract):
    def make(self, weight):
        seed, germinator = INITS["model"](weight, seed_rank(weight.shape, 0.5, 1))
        return ks.KernelSeed(seed, germinator, -2.0, weight.shape)


class TestGaussianFactors(ks.testing.WeightDistributionContract):
    gaussian = False
    by_channel = False

    def make(self, weight):
        factors = INITS["model"](weight, seed_rank(weight.shape, 0.5, 1))
        return ks.GaussianFactors(*factors, weight.shape, by_channel=self.by_channel, sigma=0.3)

    def test_the_kl_is_its_definition(self):
        weight = self.learned((4, 6), torch.float64)
        sample, factors = weight.sample(noise_of(0)), weight.decoded()
        assert sample.num_weights == 2 * (4 + 6)
        p = torch.distributions.Normal(*torch.tensor([0.1, 0.3], dtype=torch.float64))
        q = [torch.distributions.Normal(g.mean, g.std) for g in (factors.germinator.moments(), factors.seed.moments())]
        expected = sum(torch.distributions.kl_divergence(each, p).sum() for each in q)
        torch.testing.assert_close(sample.kl(ks.priors.Gaussian(0.3, mean=0.1)), expected)
        values = (sample.germinator.value, sample.seed.value)
        log_ratio = (each.log_prob(v) - PRIOR.log_prob(v) for each, v in zip(q, values, strict=True))
        torch.testing.assert_close(sample.kl(PRIOR), sum(each.sum() for each in log_ratio))

    def test_the_moments_are_those_of_a_product_of_independent_numbers(self):
        weight = self.learned((4, 2, 3, 3), torch.float64)
        factors, moments = weight.decoded(), weight.moments()
        germinators, seeds = (
            q.mean + q.std * torch.randn(20_000, *q.mean.shape, dtype=torch.float64, generator=generator())
            for q in (factors.germinator.moments(), factors.seed.moments())
        )
        products = (germinators @ seeds.flatten(2)).reshape(-1, 2, 4, 3, 3).transpose(1, 2)
        torch.testing.assert_close(products.mean(0), moments.mean, rtol=0, atol=6 * moments.std.max().item() / 141)
        torch.testing.assert_close(products.std(0), moments.std, rtol=0.08, atol=0)


class TestGaussianFactorsByChannel(TestGaussianFactors):
    by_channel = True


class TestFixedKernelSeed(ks.testing.WeightDistributionContract):
    fixed = True

    def make(self, weight):
        return ks.FixedKernelSeed(*INITS["model"](weight, seed_rank(weight.shape, 0.5, 1)), weight.shape)

"""The contract of a weight distribution, as a test suite.

Statistics are checked for several shapes, and execution for several kinds of modules. Each statistic has a false-alarm
probability of 1e-6: without fixed seeds, a correct distribution would fail less than once in ten thousand runs.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from kernelseed.core import (
    BayesianModule,
    Gaussian,
    Noise,
    ScaleMixture,
    WeightDistribution,
    call_with,
    collapse,
    convert,
    generator_for,
    load,
    priors,
    save,
    whole,
)
from kernelseed.fast import fold
from kernelseed.testing.fit import check_standard_normal
from kernelseed.testing.kinds import KINDS

SHAPES = [(6, 4), (4, 6), (5, 1), (3, 4, 3), (4, 2, 3, 3), (2, 3, 2, 2, 2)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
BATCHED = [kind for kind in KINDS if kind not in ("lstm", "gru")]  # which PyTorch can't batch
every_kind = pytest.mark.parametrize("kind", KINDS)
DRAWS = 300
PRIOR = ScaleMixture()


class WeightDistributionContract:
    """Subclass it in a test file, define `make`, and run pytest.

    class TestMine(ks.testing.WeightDistributionContract):
        def make(self, weight):
            return Mine(weight)
    """

    fixed = False
    """Whether the distribution has no noise and no KL."""
    gaussian = True
    """Whether weights are independent Gaussians. If not, override `test_the_kl_is_its_definition` with yours."""

    def make(self, weight: Tensor) -> WeightDistribution:
        """Your distribution, initialised at a weight with two or more axes."""
        raise NotImplementedError("a contract suite says how to make its distribution: def make(self, weight): ...")

    # --- moments, noise and KL --------------------------------------------------------------------------------

    @every_shape
    def test_moments_have_the_weights_shape(self, shape: tuple[int, ...]) -> None:
        """A mean and a positive standard deviation for every weight."""
        weight = self.learned(shape)
        moments = weight.moments()
        assert isinstance(moments, Gaussian)
        assert weight.shape == moments.mean.shape == shape
        assert weight.num_weights == math.prod(shape)
        assert (moments.std is None) == self.fixed
        if moments.std is not None:
            assert moments.std.shape == shape
            assert (moments.std > 0).all()
        torch.testing.assert_close(weight.mean().value, moments.mean)

    @every_shape
    def test_a_sample_is_a_function_of_its_noise(self, shape: tuple[int, ...]) -> None:
        """The same noise gives the same weight; another key or weight index gives another one."""
        weight, noise = self.learned(shape), noise_of(0)
        value = weight.sample(noise).value
        assert torch.equal(value, weight.sample(noise).value)
        torch.testing.assert_close(value, weight.decoded().sample(noise).value)
        for other in (noise_of(1), noise.for_weight(1)):
            assert torch.equal(value, weight.sample(other).value) == self.fixed

    @every_shape
    def test_samples_have_the_distribution_that_moments_state(self, shape: tuple[int, ...]) -> None:
        """Weights standardised by the moments are independent standard normals. A fixed weight is its mean."""
        weight = self.learned(shape)
        moments = weight.moments()
        values = torch.stack([weight.sample(noise_of(i)).value for i in range(DRAWS)])
        distances = (values - moments.mean).detach().flatten(1).double()
        if moments.std is None:
            assert not distances.any()
            return
        standardised = distances / moments.std.detach().flatten().double()
        if self.gaussian:
            check_standard_normal(standardised)
        else:
            assert standardised.mean(0).abs().max() < 6 / math.sqrt(DRAWS)
            assert abs(standardised.square().mean() - 1) < 0.2

    @every_shape
    def test_the_kl_is_its_definition(self, shape: tuple[int, ...]) -> None:
        """log q - log P for the scale mixture, the closed form for a Gaussian prior, no KL for a fixed weight."""
        weight = self.learned(shape, torch.float64)
        sample, moments = weight.sample(noise_of(0)), weight.moments()
        assert sample.fixed == self.fixed
        if moments.std is None:
            return
        q, value = torch.distributions.Normal(moments.mean, moments.std), sample.value
        wide, narrow = (
            torch.distributions.Normal(value.new_zeros(()), value.new_tensor(s)).log_prob(value)
            for s in (PRIOR.sigma1, PRIOR.sigma2)
        )
        log_p = torch.logaddexp(wide + math.log(PRIOR.pi), narrow + math.log(1 - PRIOR.pi))
        torch.testing.assert_close(sample.kl(PRIOR), (q.log_prob(value) - log_p).sum())
        p = torch.distributions.Normal(*value.new_tensor([0.1, 0.3]))
        expected = torch.distributions.kl_divergence(q, p).sum()
        torch.testing.assert_close(sample.kl(priors.Gaussian(0.3, mean=0.1)), expected)

    @every_shape
    def test_it_has_no_kl_from_itself(self, shape: tuple[int, ...]) -> None:
        """Decoded, it is a prior for the next task: nothing has been learned since, so the KL is 0."""
        weight = self.learned(shape)
        if not (decoded := weight.decoded()).fixed:
            for sample in (weight.sample(noise_of(0)), decoded.sample(noise_of(0))):
                assert abs(sample.kl(decoded).item()) < 1e-4 * weight.num_weights

    @every_shape
    def test_gradients_are_those_of_finite_differences(self, shape: tuple[int, ...]) -> None:
        """Gradients of the weight and of its KL, in float64."""
        weight = self.learned(shape, torch.float64)

        def outputs(*_: Tensor) -> tuple[Tensor, ...]:
            sample = weight.sample(noise_of(0))
            kls = () if self.fixed else (sample.kl(PRIOR), sample.kl(priors.Gaussian(0.5)))
            return scalar(sample.value), *kls

        assert torch.autograd.gradcheck(outputs, tuple(weight.parameters()), fast_mode=True)

    @every_shape
    def test_the_fast_way_is_the_plain_way(self, shape: tuple[int, ...]) -> None:
        """The same noise gives the same weight, KL and gradients in float32, with the kernels, and in float64."""
        found = {}
        for dtype in (torch.float32, torch.float64):
            weight = self.learned(shape).to(dtype)
            sample = weight.sample(noise_of(0))
            kl = sample.value.new_zeros(()) if self.fixed else sample.kl(PRIOR)
            parameters = tuple(weight.parameters())
            gradients = torch.autograd.grad(scalar(sample.value) + 0.01 * kl, parameters)
            found[dtype] = [sample.value.double(), kl.double(), *(g.double() for g in gradients)]
        for fast, plain in zip(found[torch.float32], found[torch.float64], strict=True):
            torch.testing.assert_close(fast, plain, rtol=2e-4, atol=1e-4 * float(plain.detach().abs().max() + 1e-3))

    # --- storage ----------------------------------------------------------------------------------------------

    @every_shape
    def test_its_spec_builds_another(self, shape: tuple[int, ...]) -> None:
        """The spec survives JSON; with the same state dict the new distribution is the same."""
        weight = self.learned(shape)
        other = type(weight).from_spec(json.loads(json.dumps(weight.spec())))
        other.load_state_dict(weight.state_dict())
        for twin in (other, copy.deepcopy(weight)):
            assert torch.equal(weight.sample(noise_of(3)).value, twin.sample(noise_of(3)).value)
            with torch.no_grad():
                for parameter in twin.parameters():
                    parameter.add_(1.0)
            assert not torch.equal(weight.mean().value, twin.mean().value)

    @every_shape
    def test_factors_multiply_to_the_mean(self, shape: tuple[int, ...]) -> None:
        """If it has factors."""
        weight = self.learned(shape)
        if (factors := weight.factors()) is not None:
            germinator, seed = factors
            product = fold(germinator @ seed.flatten(1), weight.shape)
            torch.testing.assert_close(product, weight.moments().mean)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
    def test_any_floating_dtype(self, dtype: torch.dtype) -> None:
        """Weights have the dtype of the parameters; standard deviations and the KL have at least float32."""
        weight = self.learned((4, 6)).to(dtype)
        sample, moments = weight.sample(noise_of(0)), weight.moments()
        assert sample.value.dtype == moments.mean.dtype == dtype
        assert sample.value.isfinite().all()
        if moments.std is not None:
            exact = torch.float64 if dtype == torch.float64 else torch.float32
            assert moments.std.dtype == sample.kl(PRIOR).dtype == exact
            assert (moments.std > 0).all()
            assert sample.kl(PRIOR).isfinite()

    # --- execution --------------------------------------------------------------------------------------------

    @every_kind
    def test_a_draw_runs_like_a_plain_module_of_its_weights(self, kind: str) -> None:
        """So does the mean, and every parameter gets a gradient."""
        net, x = self.network(kind)
        for draw in (net.draw(), net.mean()):
            torch.testing.assert_close(draw(*x), collapse(net, draw)(*x))
        scalar(net.draw()(*x)).backward()
        for name, parameter in net.weights.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name

    @every_kind
    def test_a_network_is_saved_and_loaded(self, kind: str, tmp_path: Path) -> None:
        """It gives the same draw, and its state dict has no dense weights."""
        net, x = self.network(kind)
        save(net.eval(), tmp_path / "net")
        kinds = {type(whole(weight)) for weight in net.weights.values()}
        loaded: Any = load(tmp_path / "net", KINDS[kind].make(), distributions=kinds)
        assert torch.equal(net.draw(generator_for("test"))(*x), loaded.draw(generator_for("test"))(*x))
        assert not {f"skeleton.{name}" for name in net.weights} & set(net.state_dict())

    @pytest.mark.parametrize("kind", BATCHED)
    @pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's own, about its batching rules
    def test_stacked_draws_run_under_vmap(self, kind: str) -> None:
        """The outputs are those of the draws one by one."""
        net, x = self.network(kind)
        draws = [net.draw() for _ in range(3)]
        stacked = {name: torch.stack([draw.weights[name] for draw in draws]) for name in draws[0].weights}
        outputs = vmap(lambda weights: call_with(net.skeleton, weights, *x))(stacked)
        torch.testing.assert_close(outputs, torch.stack([draw(*x) for draw in draws]))

    @pytest.mark.parametrize("kind", ["conv2d", "tied"])
    def test_a_training_step_compiles_in_one_graph(self, kind: str) -> None:
        """It draws the same noise as an eager step."""
        torch._dynamo.reset()
        net, x = self.network(kind)

        def step(key: Tensor, *x: Tensor) -> Tensor:
            samples = {n: w.sample(Noise(key, i)) for i, (n, w) in enumerate(net.weights.items())}
            draw = net.as_draw(samples)
            return scalar(draw(*x)) + 1e-2 * draw.kl(PRIOR)

        losses = [run(noise_of(7).key, *x) for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True))]
        eager, compiled = (torch.autograd.grad(loss, tuple(net.weights.parameters())) for loss in losses)
        for expected, found in zip(eager, compiled, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)

    # --- helpers ----------------------------------------------------------------------------------------------

    def learned(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> WeightDistribution:
        """The distribution with random changes to its parameters, as after training."""
        weight = torch.randn(shape, generator=generator_for("weight"), dtype=torch.float64)
        return disturbed(self.make((0.3 * weight).to(dtype)))

    def network(self, kind: str) -> tuple[BayesianModule, tuple[Tensor, ...]]:
        """A network with one kind of module, and inputs for it."""
        torch.manual_seed(0)
        net = convert(KINDS[kind].make(), self.make)
        disturbed(net.weights)
        return net, KINDS[kind].inputs()


@torch.no_grad()
def disturbed(module: Any) -> Any:
    """The module, with some noise added to all of its parameters."""
    generator = generator_for("disturbed")
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.add_(0.2 * noise.to(parameter.dtype))
    return module


def noise_of(number: int) -> Noise:
    """Noise that depends only on the number."""
    return Noise.new(generator_for("contract", number))


def scalar(output: Tensor) -> Tensor:
    """A number that depends on every output, and on each one differently."""
    return (output * torch.linspace(-1, 2, output.numel(), dtype=output.dtype).reshape(output.shape)).sin().sum()

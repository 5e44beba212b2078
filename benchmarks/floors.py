"""What a training step or a prediction can't do without: its floor, measured beside it in the same rounds."""

import ctypes

import subjects
import torch

import kernelseed as ks
from kernelseed.fast import Numbers, draw_values, is_transposed, kernels, trim

CACHED = 2**16
"""Numbers that stay in the caches of two cores with all that a draw reads and writes of them."""


def in_turn(*steps):
    """Several subjects as one."""

    def run():
        for step in steps:
            step()

    return run


def products(net, mean_bf16=False, rho_bf16=False):
    """Germination's three products for each weight, forward and backward, as torch's own library makes them."""
    halves = [(mean_bf16, "mean_germinator"), (rho_bf16, "rho_germinator")]
    factors = []
    for weight in net.weights.values():
        for bf16 in sorted({mean_bf16, rho_bf16}):  # what is multiplied alike is multiplied together
            dtype = torch.bfloat16 if bf16 else torch.float32
            alike = torch.cat([getattr(weight, name) for own, name in halves if own == bf16])
            factors.append((alike.detach().to(dtype), weight.seed.detach().flatten(1).to(dtype)))

    def run():
        for germinators, seed in factors:
            both = germinators @ seed
            germinators.T @ both
            both @ seed.T

    return run


def passes(numbers, noise_again=False):
    """The arithmetic of a draw of so many numbers, its KL and its gradients, on numbers that stay in the cache.

    noise_again   whether the gradient makes the noise again, as germination does, which has no mean at hand
    """
    mean, rho, grad = torch.randn(CACHED), torch.full((CACHED,), -5.0), torch.randn(CACHED)
    value, std, d_mean, d_rho = (torch.empty(CACHED) for _ in range(4))
    key, zero = torch.tensor([1, 2], dtype=torch.int32), ctypes.c_uint32(0)
    constants, sums = torch.tensor([1.0, 2.0, 3.0]), torch.empty(kernels.blocks(CACHED), dtype=torch.float64)

    def run():
        for left in range(numbers, 0, -CACHED):
            n = min(left, CACHED)
            kernels.call("ks_sample", n, mean, rho, torch.zeros(1), key, zero, zero, value, std, sums)
            kernels.call("ks_mixture", n, value, constants, sums)
            if noise_again:
                kernels.call("ks_noise", n, key, zero, zero, d_mean)
            kernels.call("ks_gradient", n, grad, value, std, mean, constants, ctypes.c_float(1e-3), d_mean, d_rho)

    return run


def adam(numbers):
    """A step of the optimizer for so many more parameters."""
    parameter = torch.nn.Parameter(torch.zeros(numbers))
    parameter.grad = torch.ones(numbers)
    return torch.optim.Adam([parameter], 1e-3, fused=True).step


def of_steps(x, y):
    """The floor of each training step that has one, at 28 x 28, by name."""
    net = ks.germinate(subjects.model(), 0.25, over="weights")
    weights = sum(weight.num_weights for weight in net.weights.values())
    plain = subjects.plain(x, y)
    seeds, once = passes(weights, noise_again=True), passes(weights)
    found = {
        "KSN .25": in_turn(plain, products(net), seeds),
        "BNN": in_turn(plain, once, adam(weights)),
        "FKSN .25": subjects.trained(trim(ks.factorise(ks.germinate(subjects.model(), 0.25, fixed=True))), x, y),
    }
    if kernels.library().ks_has_bf16():
        found["KSN .25, high"] = in_turn(plain, products(net, rho_bf16=True), seeds)
        found["KSN .25, medium"] = in_turn(plain, products(net, mean_bf16=True, rho_bf16=True), seeds)
    for name, what, ranks in subjects.OVER:
        drawn = subjects.over_net(x, what, ranks)
        alike = {name: weight.rank for name, weight in drawn.weights.items()}
        fixed = subjects.bayesian(ks.germinate(subjects.model(), ranks=alike, fixed=True), x, y)
        numbers = sum(w.seed.numel() + w.mean_germinator.numel() for w in drawn.weights.values())
        found[name] = in_turn(fixed, passes(numbers))
    return {f"floor of {name}": step for name, step in found.items()}


def of_draws(net, one_pass, x, draws=10, repeat=20):
    """The floor of some draws of a small network: one pass of the plain one, their noise, and a product a layer.

    Germinated weights also need the product of each germination.
    """
    keys = torch.randint(-(2**31), 2**31, (draws, 2)).to(torch.int32)
    layers, numbers = [], []
    for decoded in net.posterior().decoded.values():
        straight = len(decoded.gaussians) > 1 and is_transposed(decoded.shape)  # x times the germinator times the seed
        shapes = [gaussian.shape for gaussian in decoded.gaussians]
        for shape in shapes if straight else shapes[::-1]:
            rows = torch.randn(draws, len(x), shape[0] if straight else shape[1])
            numbers.append(Numbers(*torch.full((2, shape.numel()), 0.01), False, 0, 0))
            layers.append((rows, shape, straight))

    germination = [
        (torch.cat((w.mean_germinator, w.rho_germinator)).detach(), w.seed.detach().flatten(1))
        for w in net.weights.values()
        if isinstance(w, ks.KernelSeed)
    ]

    def run():
        one_pass()
        for _ in range(repeat):
            for germinators, seed in germination:
                germinators @ seed
            for (rows, shape, straight), weights in zip(layers, draw_values(numbers, keys), strict=True):
                weights = weights.view(draws, *shape)
                torch.bmm(rows, weights if straight else weights.mT)

    return run

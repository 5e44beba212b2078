"""The subjects of the benchmark: training steps of this library's networks and of other libraries'."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F

import kernelseed as ks
from kernelseed.fast.taps import trim

NUM_DATA = 60_000
Step = Callable[[], None]


def batch(size=128):
    """Random images in the shape of MNIST, and labels."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, 1, 28, 28, generator=generator), torch.randint(0, 10, (size,), generator=generator)


def model(width=64, trimmed=False):
    torch.manual_seed(0)
    net = ks.models.resnet18(10, 1, stem="imagenet", width=width)
    return trim(net) if trimmed else net


def _step(net, loss, x, bf16=False) -> Step:
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=True)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            value = loss(x)
        value.backward()
        optimizer.step()

    return step


def plain(x, y, width=64, bf16=False, trimmed=False) -> Step:
    net = model(width, trimmed)
    return _step(net, lambda x: F.cross_entropy(net(x), y), x, bf16)


def bayesian(net, x, y, bf16=False, draws=1) -> Step:
    loss = ks.ELBO(NUM_DATA)
    return _step(net, lambda x: sum(loss(net.draw(), x, y).loss for _ in range(draws)) / draws, x, bf16)


def ksn(x, y, delta=0.25, width=64, bf16=False, draws=1, fixed=False, trimmed=False) -> Step:
    return bayesian(ks.germinate(model(width, trimmed), delta, fixed=fixed), x, y, bf16, draws)


def bnn(x, y, trimmed=False) -> Step:
    return bayesian(ks.bayesianize(model(trimmed=trimmed)), x, y)


# --- other libraries, used as in their documentation -------------------------------------------------------------


def bayesian_torch(x, y, kind="Reparameterization") -> Step:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = copy.deepcopy(model())
    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -5.0}
    dnn_to_bnn(net, {**settings, "type": kind, "moped_enable": False, "moped_delta": 0.5})
    return _step(net, lambda x: F.cross_entropy(net(x), y) + get_kl_loss(net) / len(x), x)


def bayesian_torch_flipout(x, y) -> Step:
    return bayesian_torch(x, y, "Flipout")


def torchbayesian(x, y) -> Step:
    import torchbayesian.bnn as bnn

    net = bnn.BayesianModule(model())
    return _step(net, lambda x: F.cross_entropy(net(x), y) + net.kl_divergence() / NUM_DATA, x)


def ivon(x, y) -> Step:
    import ivon as package

    net = model()
    optimizer = package.IVON(net.parameters(), lr=0.1, ess=NUM_DATA)

    def step():
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


PEERS = {
    "bayesian-torch BNN": bayesian_torch,
    "bayesian-torch flipout": bayesian_torch_flipout,
    "torchbayesian BNN": torchbayesian,
    "IVON": ivon,
}

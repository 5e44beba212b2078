"""The subjects of the benchmark: training steps of this library's networks and of other libraries'."""

import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import kernelseed as ks
from kernelseed.fast import draw_values, trim

NUM_DATA = 60_000
Step = Callable[[], None]


def batch(size=128, shape=(1, 28, 28)):
    """Random images, by default in the shape of MNIST, and labels."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, *shape, generator=generator), torch.randint(0, 10, (size,), generator=generator)


def model(channels=1, width=64, trimmed=False):
    """The ResNet-18 of all tables."""
    torch.manual_seed(0)
    net = ks.models.resnet18(10, channels, stem="imagenet", width=width)
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
    net = model(x.shape[1], width, trimmed)
    return _step(net, lambda x: F.cross_entropy(net(x), y), x, bf16)


def bayesian(net, x, y, bf16=False, draws=1) -> Step:
    loss = ks.ELBO(NUM_DATA)
    return _step(net, lambda x: sum(loss(net.draw(), x, y).loss for _ in range(draws)) / draws, x, bf16)


def ksn(x, y, delta=0.25, width=64, bf16=False, draws=1, fixed=False, trimmed=False) -> Step:
    return bayesian(
        ks.germinate(model(x.shape[1], width, trimmed), delta, fixed=fixed, over="weights"), x, y, bf16, draws
    )


def bnn(x, y, trimmed=False) -> Step:
    return bayesian(ks.bayesianize(model(trimmed=trimmed)), x, y)


BY_STAGE = {"layer1.*": 64, "layer2.*": 64, "layer3.*": 72, "layer4.*": 112}


def over(x, y, what, ranks=None) -> Step:
    """Gaussians on the factors, at .31 of the plain network's parameters or with these ranks."""
    size = {"budget": 0.31} if ranks is None else {"ranks": ranks}
    return bayesian(ks.germinate(model(x.shape[1]), over=what, **size), x, y)


def products(net) -> Step:
    """Germination's three products for each weight, forward and backward, and nothing else: the floor of a draw."""
    factors = [
        (torch.cat((w.mean_germinator, w.rho_germinator)).detach(), w.seed.detach().flatten(1))
        for w in net.weights.values()
    ]

    def run():
        for germinators, seed in factors:
            both = germinators @ seed
            germinators.T @ both
            both @ seed.T

    return run


SMALL = {
    "digits MLP": (lambda: ks.models.mlp(10, 1, (8, 8)), batch(32, (1, 8, 8))[0]),
    "50-unit tabular net": (
        lambda: torch.nn.Sequential(torch.nn.Linear(13, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2)),
        batch(32, (13,))[0],
    ),
}


def noise_and_products(plain, x, draws=10, repeat=20) -> Step:
    """What ten draws of a small network can't do without: their noise, and a product for each layer."""
    keys = torch.randint(-(2**31), 2**31, (draws, 2)).to(torch.int32)
    weights = [m.weight.detach() for m in plain.modules() if isinstance(m, torch.nn.Linear)]
    inputs = [torch.randn(draws, len(x), weight.shape[1]) for weight in weights]
    moments = [(weight.flatten(), torch.full((weight.numel(),), 0.01)) for weight in weights]

    def run():
        for _ in range(repeat):
            for i, (rows, (mean, std)) in enumerate(zip(inputs, moments, strict=True)):
                weights = draw_values(mean, std, keys, i, 0).view(draws, -1, rows.shape[-1])
                torch.bmm(rows, weights.transpose(1, 2))

    return run


class _Objective(torch.nn.Module):
    """Network and loss in one forward, which is what DDP synchronises."""

    def __init__(self, net):
        super().__init__()
        self.net, self.loss = net, ks.ELBO(NUM_DATA)

    def forward(self, x, y):
        return self.loss(self.net.draw(), x, y).loss


def ddp_worker(rank, processes, folder, count):
    """One of the processes that train KSN .25 on 128 images together; the first writes the median seconds of a step."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store{processes}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
    x, y = batch(128 // processes)
    module = torch.nn.parallel.DistributedDataParallel(_Objective(ks.germinate(model(), 0.25, over="weights")))
    optimizer = torch.optim.Adam(module.parameters(), 1e-3, fused=True)
    times = []
    for _ in range(count + 2):
        start = time.perf_counter()
        optimizer.zero_grad()
        module(x, y).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    if rank == 0:
        Path(folder, f"{processes}.txt").write_text(str(statistics.median(times[2:])))
    torch.distributed.destroy_process_group()


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

"""The subjects of the benchmark: training steps of this library's networks and of other libraries'."""

import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import kernelseed as ks
from kernelseed.core import likelihoods, values
from kernelseed.core.stacked import EachDraw
from kernelseed.fast import trim

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


def trained(net, x, y, bf16=False) -> Step:
    """A step of a plain network."""
    return _step(net.train(), lambda x: F.cross_entropy(net(x), y), x, bf16)


def plain(x, y, width=64, bf16=False, trimmed=False) -> Step:
    return trained(model(x.shape[1], width, trimmed), x, y, bf16)


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


OVER = (
    ("over factors", "factors", None),
    ("over channels", "channels", None),
    ("over channels, ranks by stage", "channels", BY_STAGE),
)


def over_net(x, what, ranks=None):
    """Gaussians on the factors, at .31 of the plain network's parameters or with these ranks."""
    size = {"budget": 0.31} if ranks is None else {"ranks": ranks}
    return ks.germinate(model(x.shape[1]), over=what, **size)


def over(x, y, what, ranks=None) -> Step:
    return bayesian(over_net(x, what, ranks), x, y)


def rounded(step, precision) -> Step:
    """A step with torch's switch for float32 products, which germination follows and nothing else here."""

    def run():
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            step()
        finally:
            torch.set_float32_matmul_precision(before)

    return run


SMALL = {
    "digits MLP": (lambda: ks.models.mlp(10, 1, (8, 8)), batch(32, (1, 8, 8))[0]),
    "50-unit tabular net": (
        lambda: torch.nn.Sequential(torch.nn.Linear(13, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2)),
        batch(32, (13,))[0],
    ),
}


OF_A_PREDICTION = {
    "decoding": (ks.BayesianModule, "posterior"),
    "the noise, times sigma": (values, "draw_values"),
    "the layers": (EachDraw, "__call__"),
    "averages and uncertainties": (likelihoods.Categorical, "predictive"),
}
"""The functions that do the work of a prediction, none within another."""


def small(make):
    """A small plain network, and Bayesian ones of it."""
    torch.manual_seed(0)
    plain = make().eval()
    nets = {"BNN": ks.bayesianize(plain), "KSN .25": ks.germinate(plain, 0.25, over="weights")}
    return plain, nets | {f"over {what}": ks.germinate(plain, 0.25, over=what) for what in ("factors", "channels")}


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

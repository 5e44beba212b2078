"""What each process of the data-parallel test runs; a module of its own, so that spawned processes can import it."""

import torch
import torch.distributed
from kinds import mlp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kernelseed as ks

NETS = {
    "seed": lambda: ks.germinate(mlp(3, 8, 4), 0.5, min_rank=2, over="weights"),
    "channels": lambda: ks.germinate(mlp(3, 8, 4), 0.5, min_rank=2),
    "mean_field": lambda: ks.bayesianize(mlp(3, 8, 4)),
    "fixed": lambda: ks.germinate(mlp(3, 8, 4), 0.5, min_rank=2, fixed=True),
}


class Objective(nn.Module):
    """Network and loss in one forward, which is what DDP synchronises."""

    def __init__(self, net):
        super().__init__()
        self.net, self.loss = net, ks.ELBO(num_data=20)

    def forward(self, x, y):
        return self.loss(self.net.draw(), x, y).loss


def gradients(module):
    return [p.grad.clone() for p in module.parameters()]


def work(rank, folder):
    """Two steps of each net, on this rank's data and noise; what was seen goes to a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    seen = {}
    for name, make in NETS.items():
        torch.manual_seed(0)
        net = make()
        torch.manual_seed(1 + rank)
        x, y = torch.randn(10, 3), torch.arange(10) % 4
        state = torch.get_rng_state()
        alone = Objective(net)
        alone(x, y).backward()
        local = gradients(alone)
        alone.zero_grad()
        noise = net.draw().weights["0.weight"].detach()

        torch.set_rng_state(state)
        parallel = DistributedDataParallel(Objective(net))  # find_unused_parameters=False: it raises if there are any
        parallel(x, y).backward()
        seen[name] = {"local": local, "noise": noise, "gradients": gradients(net)}
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.step()
        optimizer.zero_grad()
        parallel(x, y).backward()  # where DDP would complain about the first step
        optimizer.step()
        seen[name]["parameters"] = [p.detach() for p in net.parameters()]

        forward = DistributedDataParallel(net)  # the net itself: its call is a draw
        for _ in range(2):
            forward(x).sum().backward()
    torch.save(seen, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()

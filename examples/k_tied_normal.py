"""A weight distribution of your own is one class: the k-tied normal (Swiatkowski et al., 2020).

    python examples/k_tied_normal.py; pytest examples/k_tied_normal.py

Every weight has a mean; the standard deviations are a matrix of rank k. It trains, saves, loads and passes the suite.
"""

import tempfile

import torch
from torch import nn

import kernelseed as ks
from kernelseed.core import softplus


class KTiedNormal(ks.WeightDistribution):
    def __init__(self, weight, k=2, std=0.01):
        super().__init__()
        self.shape, self.k = weight.shape, k
        self.mu = nn.Parameter(weight.clone())
        start = torch.tensor((std / k) ** 0.5).expm1().log().item()  # both factors start at sqrt(std / k)
        self.rows = nn.Parameter(weight.new_full((weight.shape[0], k), start))
        self.columns = nn.Parameter(weight.new_full((k, weight[0].numel()), start))

    def moments(self):
        return ks.Gaussian(self.mu, (softplus(self.rows) @ softplus(self.columns)).reshape(self.shape))

    def spec(self):
        return {"shape": list(self.shape), "k": self.k}

    @classmethod
    def from_spec(cls, spec):
        return cls(torch.empty(spec["shape"]), spec["k"])


class TestKTiedNormal(ks.testing.WeightDistributionContract):
    def make(self, weight):
        return KTiedNormal(weight)


def main():
    torch.manual_seed(0)
    x = torch.randn(300, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = ks.convert(model := nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2)), KTiedNormal)
    loss, optimizer = ks.ELBO(len(x)), torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        loss(net.draw(), x, y).loss.backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        ks.save(net, folder)
        net = ks.load(folder, model, distributions=[KTiedNormal])
    print(f"training accuracy {ks.metrics.accuracy(ks.predict(net, x).probs, y):.3f}")


if __name__ == "__main__":
    main()

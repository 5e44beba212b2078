"""Regression with both uncertainties: the noise that the data have, and the doubt where there are none.

    python examples/regression_bands.py [bands.png]

A curve with a gap in its data, and noise that grows to the right. The network gives a mean and a noise level from
sixty fixed bumps along x; the weights that combine them are a kernel seed, trained by the exact evidence lower bound.
The data tell little about bumps in the gap and beyond the ends, so draws part ways there.
"""

import math
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

import kernelseed as ks

torch.manual_seed(1)
N = 240
x = torch.cat([-1.6 + 1.1 * torch.rand(N // 2), 0.5 + 1.1 * torch.rand(N // 2)])[:, None]
y = torch.sin(2.5 * x) + (0.05 + 0.06 * (x + 1.6)) * torch.randn_like(x)


class Bump(nn.Module):
    def forward(self, z):
        return torch.exp(-z.square())


model = nn.Sequential(nn.Linear(1, 60).requires_grad_(False), Bump(), nn.Linear(60, 2))
with torch.no_grad():
    model[0].weight.fill_(4.0)
    model[0].bias.copy_(torch.linspace(-12.0, 12.0, 60))  # centres from -3 to 3
    model[2].bias.copy_(torch.tensor([0.0, -2.0]))  # noise of softplus(-2) = .13 to start with
net = ks.germinate(model, delta=1.0, rho_offset=-3.0, where=lambda name, parameter: name == "2.weight")
likelihood = ks.likelihoods.Gaussian(noise="output")
loss = ks.ELBO(N, ks.priors.Gaussian(0.5), likelihood=likelihood)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
for _ in range(1500):
    optimizer.zero_grad()
    loss(net.draw(), x, y).loss.backward()
    optimizer.step()
    schedule.step()

grid = torch.linspace(-2.6, 2.6, 400)[:, None]
p = ks.predict(net, grid, samples=200, likelihood=likelihood)
where = {"data": ((grid.abs() > 0.5) & (grid.abs() < 1.6)), "gap": grid.abs() < 0.3, "outside": grid.abs() > 2.2}
for name, inside in where.items():
    print(f"{name:8s} epistemic {p.epistemic[inside].mean():.5f}  aleatoric {p.aleatoric[inside].mean():.5f}")

t, mean, doubt, both = (v[:, 0].numpy() for v in (grid, p.mean, p.epistemic.sqrt(), p.std))
figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
axes.fill_between(t, mean - 2 * both, mean + 2 * both, color="#f6d5b8", lw=0, label="and the data's noise (aleatoric)")
axes.fill_between(t, mean - 2 * doubt, mean + 2 * doubt, color="#7fa8cc", lw=0, label="doubt of the curve (epistemic)")
axes.plot(t, mean, color="#16324f", lw=2, label="mean of 200 draws")
axes.plot(t, [math.sin(2.5 * v) for v in t], color="#16324f", lw=1, ls=":", label="truth")
axes.scatter(x, y, s=9, color="#2b2b2b", alpha=0.65, lw=0, label="data")
axes.set(xlim=(-2.6, 2.6), ylim=(-2.4, 2.6), xlabel="x", ylabel="y")
axes.set_title("Two standard deviations to either side, and where they come from", loc="left")
axes.spines[["top", "right"]].set_visible(False)
figure.legend(frameon=False, ncols=5, loc="outside lower center", fontsize=8)
path = sys.argv[1] if len(sys.argv) > 1 else "bands.png"
figure.savefig(path, dpi=150)
print(f"wrote {path}")

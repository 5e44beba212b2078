"""Regression with both uncertainties: the noise that the data have, and the doubt where there are none.

    python examples/regression_bands.py [bands.png]

A thousand points with a gap among them, and a network with two hidden layers, 1-64-64-1. Every weight is germinated
at delta .25, so the matrix between the hidden layers comes from a seed of rank 16. Training is by the exact evidence
lower bound: KL weight 1, no temperature. Over eight random seeds on which nothing was chosen, the epistemic deviation
is 12 to 20 times as large in the gap as among the data, and 5 to 9 times outside them. The true curve is within
the band in all of the gap, but in only 47 to 86 % of what lies beyond the ends: there the band opens slowly.

What was chosen, by the fit to the data and by the shape of the band where there are none:

activation  Gaussian bumps, exp(-z^2), in the first hidden layer, ReLU in the second. The bumps start all along the
            axis and are trained like any layer. A unit that answers to a part of the axis keeps its doubt where no
            data reach it. With sine units in the first layer the band is at most 1.3 times as wide in the gap as
            among the data, and with tanh or ReLU the prior wins and nothing is fitted (two seeds each). Posteriors
            with independent weights are known to be too sure between data: Foong et al. (2020), On the
            Expressiveness of Approximate Inference in Bayesian Neural Networks.
prior       a standard deviation of 2. At 1 the band outside the data is on some seeds hardly wider than among them.
data        a thousand. With 240 the prior outweighs them, and the mean misses the curve.
steps       2,000. With fewer the noise comes out larger and the bands outside the data narrower.
seed        3, for the looks of the figure.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

import kernelseed as ks

torch.manual_seed(3)
torch.set_num_threads(1)  # so small a network is fastest on one
N, STEPS = 1000, 2000
x = torch.cat([torch.empty(N // 2, 1).uniform_(-8, -2.5), torch.empty(N // 2, 1).uniform_(2.5, 8)])
y = torch.sin(x / 2) + 0.15 * torch.randn_like(x)


class Bump(nn.Module):
    def forward(self, z):
        return torch.exp(-z.square())


model = nn.Sequential(nn.Linear(1, 64), Bump(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
with torch.no_grad():  # w x + b is 0 at x = -b / w: the centres of the bumps, from -16 to 16
    model[0].bias.copy_(torch.linspace(-16, 16, 64) * model[0].weight[:, 0])
net = ks.germinate(model, delta=0.25, min_rank=1, rho_offset=-3.0, over="weights")
likelihood = ks.likelihoods.Gaussian(noise="learned")
loss = ks.ELBO(N, ks.priors.Gaussian(2.0), ks.schedules.constant(1.0), likelihood)
optimizer = torch.optim.Adam([*net.parameters(), *loss.parameters()], lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for _ in range(STEPS):
    optimizer.zero_grad()
    loss(net.draw(), x, y).loss.backward()
    optimizer.step()
    schedule.step()

grid = torch.linspace(-13, 13, 400)[:, None]
p = ks.predict(net, grid, samples=200, likelihood=likelihood)
doubt, noise = p.epistemic.sqrt(), p.aleatoric.sqrt()
for name, w in net.weights.items():
    print(f"{name} {tuple(w.shape)} from a seed of rank {w.rank}")
places = {"data": (grid.abs() > 2.5) & (grid.abs() < 8), "gap": grid.abs() < 1.5, "outside": grid.abs() > 11}
for place, inside in places.items():
    print(f"{place:8s} epistemic std {doubt[inside].mean():.3f}  aleatoric std {noise[inside].mean():.3f}")

t, mean, doubt, both = (v[:, 0].numpy() for v in (grid, p.mean, doubt, p.std))
figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
axes.fill_between(t, mean - 2 * both, mean + 2 * both, color="#f6d5b8", lw=0, label="and the data's noise (aleatoric)")
axes.fill_between(t, mean - 2 * doubt, mean + 2 * doubt, color="#7fa8cc", lw=0, label="doubt of the curve (epistemic)")
axes.plot(t, mean, color="#16324f", lw=2, label="mean of 200 draws")
axes.plot(t, torch.sin(grid / 2), color="#16324f", lw=1, ls=":", label="truth")
axes.scatter(x, y, s=4, color="#2b2b2b", alpha=0.5, lw=0, label="data")
axes.set(xlim=(-13, 13), xlabel="x", ylabel="y")
axes.set_title("Two standard deviations to either side, and where they come from", loc="left")
axes.spines[["top", "right"]].set_visible(False)
figure.legend(frameon=False, ncols=5, loc="outside lower center", fontsize=8)
path = sys.argv[1] if len(sys.argv) > 1 else "bands.png"
figure.savefig(path, dpi=150)
print(f"wrote {path}")

"""VOGN and Vadam against the best that a Gaussian with independent weights can be, on a task of their authors' paper.

    python benchmarks/logistic.py results/logistic.json

Bayesian logistic regression on breast cancer data: the expectation under such a Gaussian is an integral over one number
for each example, so the evidence lower bound and its optimum are known to machine precision, by quadrature.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer
from torch import nn

from kernelseed.core import derive_seed
from kernelseed.optim import VOGN, Vadam
from kernelseed.system import write_json
from kernelseed.training import provenance

PRIOR_PRECISION, EXAMPLES, SEEDS = 1.0, 200_000, 3
BATCHES = {"VOGN": (1, 32), "Vadam": (1, 8, 32)}


def breast_cancer():
    """Standardised features and a constant; labels -1 and 1."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    x = torch.from_numpy(np.column_stack([x, np.ones(len(x))]))
    return x, torch.from_numpy(2.0 * y - 1)


def negative_bound(mean, std, x, y):
    """The negative evidence lower bound of N(mean, std^2), exactly."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(64))
    margin = (x @ mean)[:, None] + (x.square() @ std.square()).sqrt()[:, None] * nodes
    nll = (F.softplus(-y[:, None] * margin) @ (weights / weights.sum())).sum()
    kl = 0.5 * (PRIOR_PRECISION * (mean.square() + std.square()) - 1 - (PRIOR_PRECISION * std.square()).log())
    return nll + kl.sum()


def optimum(x, y):
    """The mean and standard deviations that maximise it."""
    mean, log_std = (torch.zeros(x.shape[1], dtype=x.dtype, requires_grad=True) for _ in range(2))
    search = torch.optim.LBFGS([mean, log_std], max_iter=2000, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure():
        search.zero_grad()
        loss = negative_bound(mean, log_std.exp(), x, y)
        loss.backward()
        return loss

    search.step(closure)
    return mean.detach(), log_std.detach().exp()


def trained(method, batch, seed, x, y):
    """The mean and standard deviations after so many examples; the rate falls as 1 / t."""
    generator = torch.Generator().manual_seed(derive_seed("logistic", method, batch, seed))
    w = nn.Parameter(torch.zeros(x.shape[1], dtype=x.dtype))
    steps = EXAMPLES // batch
    settings = {"prior_precision": PRIOR_PRECISION, "train_samples": 1, "generator": generator}
    memory = 1 - 50 / steps  # the curvature is an average over a fiftieth of the steps
    if method == "VOGN":
        opt = VOGN([w], len(x), lr=0.1 * batch / 32, betas=(0.0, memory), **settings)
    else:
        opt = Vadam([w], len(x), lr=0.02, betas=(0.9, memory), **settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t / (0.02 * steps)))
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,), generator=generator)
        margin, signs = x[rows], y[rows]

        def losses(margin=margin, signs=signs):
            return F.softplus(-signs * (margin @ w))

        opt.step(losses if method == "VOGN" else lambda losses=losses: losses().mean())
        schedule.step()
    return w.detach(), opt.precision(w).rsqrt()


def main(out):
    x, y = breast_cancer()
    mean, std = optimum(x, y)
    best = negative_bound(mean, std, x, y).item()
    found = []
    for method, batches in BATCHES.items():
        for batch in batches:
            for seed in range(SEEDS):
                m, s = trained(method, batch, seed, x, y)
                gap = negative_bound(m, s, x, y).item() - best
                own = negative_bound(m, std, x, y).item() - best  # its mean with the best deviations
                ratio = (s / std).log().mean().exp().item()
                found.append({"method": method, "batch": batch, "seed": seed, "gap": gap, "of_mean": own, "std": ratio})
                print(found[-1], flush=True)
    settings = {"examples": EXAMPLES, "rows": len(x), "weights": x.shape[1], "prior_precision": PRIOR_PRECISION}
    write_json(Path(out), {"settings": settings, "negative_bound": best, "found": found, **provenance()})


if __name__ == "__main__":
    main(*sys.argv[1:])

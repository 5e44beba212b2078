"""Vadam and VOGN, slowly: line by line as the equations, loops over draws and examples, nothing in place.

A model is a function loss(w, x, y) of a list of weights and ONE example; nothing here knows torch.optim, the
library or its parameters. Noise comes in the order the library promises: draw by draw, weight by weight.
"""

import torch


def gradient(function, w):
    w = [v.detach().clone().requires_grad_() for v in w]
    return torch.autograd.grad(function(w), w)


def vadam(loss, mu, batches, *, N, lr, b1, b2, lam, P0, K, generator):
    """Yields (mu, precision) after every step. `lr` and `lam` are lists, one number for each weight."""
    n = len(mu)
    m = [torch.zeros_like(mu[j]) for j in range(n)]
    s0 = [torch.ones_like(mu[j]) * (P0 - lam[j]) / N for j in range(n)]
    s = [start.clone() for start in s0]
    t = 0
    for x, y in batches:
        t = t + 1
        gbar = [0.0] * n
        qbar = [0.0] * n
        for _ in range(K):
            eps = [torch.randn(mu[j].shape, generator=generator, dtype=mu[j].dtype) for j in range(n)]
            w = [mu[j] + eps[j] / torch.sqrt(N * s[j] + lam[j]) for j in range(n)]
            g = gradient(lambda w, x=x, y=y: sum(loss(w, x[i], y[i]) for i in range(len(x))) / len(x), w)
            for j in range(n):
                gbar[j] = gbar[j] + g[j] / K
                qbar[j] = qbar[j] + g[j] ** 2 / K
        for j in range(n):
            m[j] = b1 * m[j] + (1 - b1) * (gbar[j] + lam[j] * mu[j] / N)
            s[j] = b2 * s[j] + (1 - b2) * qbar[j]
            mhat = m[j] / (1 - b1**t)
            # What is corrected for is that the average has seen t steps only: the start's share is taken out.
            shat = (s[j] - b2**t * s0[j]) / (1 - b2**t)
            mu[j] = mu[j] - lr[j] * mhat / (torch.sqrt(shat) + lam[j] / N)
        yield mu, [N * s[j] + lam[j] for j in range(n)]


def vogn(loss, mu, batches, *, N, lr, b, lam, P0, K, generator):
    """Yields (mu, precision) after every step. `lr` and `lam` are lists, one number for each weight."""
    n = len(mu)
    P = [torch.ones_like(mu[j]) * P0 for j in range(n)]
    for x, y in batches:
        B = len(x)
        gbar = [0.0] * n
        hbar = [0.0] * n
        for _ in range(K):
            eps = [torch.randn(mu[j].shape, generator=generator, dtype=mu[j].dtype) for j in range(n)]
            w = [mu[j] + eps[j] / torch.sqrt(P[j]) for j in range(n)]
            for i in range(B):
                g = gradient(lambda w, x=x, y=y, i=i: loss(w, x[i], y[i]), w)
                for j in range(n):
                    gbar[j] = gbar[j] + g[j] / (K * B)
                    hbar[j] = hbar[j] + g[j] ** 2 / (K * B)
        for j in range(n):
            P[j] = b * P[j] + (1 - b) * (N * hbar[j] + lam[j])
            mu[j] = mu[j] - lr[j] * (N * gbar[j] + lam[j] * mu[j]) / P[j]
        yield mu, P

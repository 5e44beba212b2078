"""Slow references that follow the text line by line; nothing here is shared with the library."""

import math

import torch
import torch.nn.functional as F

CONVOLUTION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def germinate(seed, germinator, shape):
    """Section 2: a 1x1 convolution G (C_f, C_pip, 1...) applied to the seed psi (C_pip, C_F, k...).

    The convolution's batch axis is C_F and its channels are C_pip, so its output is (C_F, C_f, k...). A linear seed
    has no k and is convolved in one dimension of length one. The paper writes weights as (C_in, C_out, k...), where
    the output needs transposing when C_F = C_out; PyTorch stores (C_out, C_in, k...), the other way around.
    """
    c_out, c_in, *k = shape
    assert seed.shape[1] == max(c_in, c_out)
    assert germinator.shape == (min(c_in, c_out), seed.shape[0])
    taps = k or [1]
    psi = seed.reshape(seed.shape[0], seed.shape[1], *taps)
    kernel = germinator.reshape(*germinator.shape, *[1] * len(taps))
    images = torch.stack([psi[:, i] for i in range(psi.shape[1])])  # batch C_F, channels C_pip
    out = CONVOLUTION[len(taps)](images, kernel)  # (C_F, C_f, k...)
    if c_out <= c_in:  # C_F is C_in. For a square weight the text leaves the choice; this is the library's.
        out = out.permute(1, 0, *range(2, out.dim()))
    return out.reshape(shape)


def softplus(rho):
    return math.log1p(math.exp(-abs(rho))) + max(rho, 0.0)


def log_normal(w, mean, std):
    return -0.5 * ((w - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)


def log_scale_mixture(w, pi, sigma1, sigma2):
    """log of pi N(w | 0, sigma1^2) + (1 - pi) N(w | 0, sigma2^2), the larger term taken out of the sum."""
    wide = math.log(pi) + log_normal(w, 0.0, sigma1)
    narrow = math.log(1 - pi) + log_normal(w, 0.0, sigma2)
    top = max(wide, narrow)
    return top + math.log(math.exp(wide - top) + math.exp(narrow - top))


def kl_at(values, means, stds, prior):
    """sum of log q(w) - log P(w) over weights, in plain Python floats."""
    total = 0.0
    for w, mean, std in zip(values, means, stds, strict=True):
        total += log_normal(w, mean, std) - log_scale_mixture(w, prior.pi, prior.sigma1, prior.sigma2)
    return total

"""Do layers choose the faster way? Each germinated convolution of a ResNet-18, forward and backward, in every way.

And how many numbers are worked on together without kernels.
"""

from functools import partial

import subjects
import torch
import torch.nn.functional as F
from timing import rounds

import kernelseed as ks
from kernelseed.fast import current_costs, flat, fold, germinate_matrix, is_transposed, thin_is_cheaper, thin_weights
from kernelseed.fast.taps import by_position, live_convolution

IMAGES = 128
# inputs, outputs, extent, taps, stride, padding, rank
LAYERS = (
    (64, 64, 7, 3, 1, 1, 16),
    (64, 64, 7, 3, 1, 1, 64),
    (64, 128, 7, 3, 2, 1, 16),
    (128, 128, 4, 3, 1, 1, 32),
    (128, 128, 4, 3, 1, 1, 90),
    (128, 256, 4, 3, 2, 1, 72),
    (256, 256, 2, 3, 1, 1, 64),
    (256, 512, 2, 3, 2, 1, 112),
    (512, 512, 1, 3, 1, 1, 112),
)


def _whole(x, weight, live, stride):
    return F.conv2d(x, weight[:, :, live.rows, live.columns], None, stride, live.padding)


def _products(x, weight, live, stride):
    return by_position(x, weight[:, :, live.rows, live.columns], None, live.down, live.across)


def ways(inputs, outputs, extent, taps, stride, padding, rank):
    """The steps by name, and the name of the one that is chosen."""
    shape = torch.Size((outputs, inputs, taps, taps))
    live = live_convolution(extent, taps, stride, padding, 1)
    x = torch.randn(IMAGES, inputs, extent, extent, requires_grad=True)
    seed = torch.randn(rank, max(shape[:2]), taps, taps, requires_grad=True)
    germinator = torch.randn(min(shape[:2]), rank, requires_grad=True)

    def dense(run):
        return run(x, fold(germinate_matrix(germinator, seed), shape), live, stride)

    def thin(run):
        first, second = thin_weights(germinator, seed, shape)
        if is_transposed(shape):
            return run(F.conv2d(x, first), second, live, stride)
        return F.conv2d(run(x, first, live, stride), second)

    gradient = torch.randn_like(dense(_whole))
    named = {
        f"{name}, {how}": lambda layer=layer, run=run: torch.autograd.grad(layer(run), (x, seed, germinator), gradient)
        for name, layer in (("dense", dense), ("thin", thin))
        for how, run in (("library", _whole), ("by position", _products))
        if how == "library" or live.positions <= 16
    }
    runs_thin = thin_is_cheaper(
        shape,
        rank,
        IMAGES * extent**2,
        IMAGES * live.positions,
        training=True,
        taps=live.taps,
        costs=current_costs(),
    )
    channels = ((rank, outputs) if is_transposed(shape) else (inputs, rank)) if runs_thin else (inputs, outputs)
    whole, products = live.times(IMAGES, *channels, current_costs(), True)
    return named, f"{'thin' if runs_thin else 'dense'}, {'by position' if products < whole else 'library'}"


def measure(count):
    """For each layer: the chosen way, the fastest, and the time of the one over that of the other."""
    found = {}
    for layer in LAYERS:
        inputs, outputs, extent, taps, stride, _, rank = layer
        named, chosen = ways(*layer)
        taken = {name: values["ms"] for name, values in rounds(named, max(3, count // 2), str(layer)).items()}
        best = min(taken, key=taken.get)
        title = f"{inputs} to {outputs}, {taps} x {taps}, stride {stride}, {extent} x {extent} pixels, rank {rank}"
        ratio = round(taken[chosen] / taken[best], 2)
        found[title] = {"chosen": chosen, "fastest": best, "ms": taken[best], "ratio": ratio}
    return found


def blocks(count):
    """The time of a draw with its KL and gradients for several sizes of `flat.CACHED`, in float64, without kernels."""
    networks = {
        "KSN, perceptron of 8 x 50": ks.germinate(ks.models.mlp(10, 1, (8, 8), widths=[50] * 8), over="weights"),
        "BNN, perceptron of 2 x 200": ks.bayesianize(ks.models.mlp(10, 1, (8, 8))),
        "KSN, ResNet-18 of width 32": ks.germinate(subjects.model(width=32), over="weights"),
    }
    before, found = flat.CACHED, {}
    for name, net in networks.items():
        named = {f"{name}, 2^{power}": partial(_draw, net.double(), 2**power) for power in (17, 0, 13, 15, 19, 21)}
        found |= rounds(named, 2 * count, name)
    flat.CACHED = before
    return found


def _draw(net, cached):
    flat.CACHED = cached
    draw = net.draw()
    (draw.kl(ks.ScaleMixture()) + sum(weight.sum() for weight in draw.weights.values())).backward()

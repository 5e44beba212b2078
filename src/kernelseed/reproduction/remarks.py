"""The notes on the tables: what the paper does not specify, and what was chosen here."""

from __future__ import annotations

from kernelseed.reproduction.plan import BATCH_SIZE

KL_WEIGHTS = {
    "settled": "min(1, .05 N / number of weights)",
    "automatic": "min(1, N / number of weights)",
    "blundell": "Bayes by Backprop's 2^(M-i) / (2^M - 1) over the M batches of an epoch",
    "uniform": "1, so that the loss is the exact evidence lower bound",
}

NOTES: tuple[str, ...] = (
    f"The paper does not print these settings; chosen here: batches of {BATCH_SIZE}, {{augmentation}}, Adam, "
    "torchvision's stem on MNIST and Fashion-MNIST (it matches the paper's baseline on the latter), and a 3x3 stem "
    "without pooling on CIFAR.",
    "Initial sigma: the paper names no offset, but an initial rho of 0 gives a sigma of .69, many times the size of a "
    "weight. Here KSN and BNN both start at rho = -5, a sigma of .0067.",
    "KL weight of KSN and BNN: {weight}. The paper refers to Bayes by Backprop and prints no weight. `--kl` sets "
    "another: `--kl blundell` is that of Bayes by Backprop.",
    "Seeds: C_pip = ceil(delta C_f), so at delta .25 the ten-class head has rank 3. They have a Glorot initialisation.",
    "VOGN is trained with Vadam, as in the paper, with an initial standard deviation of .01. Its rate, .001, is "
    "the best of .0003, .001 and .003 on validation images of Fashion-MNIST, two epochs of two draws. It uses the "
    "paper's ten draws per step unless its row gives another number. † The softmax is applied once. The paper's NLL "
    "and calibration of VOGN are consistent with a softmax applied twice and can't be compared; accuracies can.",
    "Dropout with rate .1 is inside each residual block, after the first activation; the paper does not say where.",
    "ECE, ACE and MCE use 15 confidence bins of equal width; the paper does not print the number. ACE is the "
    "unweighted mean over bins that are not empty.",
    "E: the average of ten draws. P: the posterior mean. In the paper's rows, BatchNorm's {statistics}.",
)


def notes(kl: str, augment: bool, update_bn: int) -> list[str]:
    """The notes on a table whose paper's rows had these settings (see `Plan`)."""
    chosen = {
        "weight": KL_WEIGHTS.get(kl, kl),
        "augmentation": "random crops and flips" if augment else "no augmentation",
        "statistics": f"statistics are re-estimated for each draw from {update_bn:,} training images"
        if update_bn
        else "running statistics are used, also for draws that they do not fit",
    }
    return [note.format_map(chosen) for note in NOTES]


OWN_DEFAULTS = (
    "With this library's own defaults: a fifth of the epochs as a plain network, from whose weights the Bayesian one "
    "starts; a learning rate that falls by a cosine; a KL of .05 of the paper's rows' weight, with sigmas that learn "
    "faster. KSN has the size of the paper's at .25, shared among the layers in another way, and its Gaussians are on "
    "the factors, with one sigma a channel."
)

MARKS = (
    "Ours (the paper's). ▲ ours is better, ▼ ours is worse: in accuracy by more than two standard errors of a "
    "difference over 10,000 images, in the other columns by more than a fifth. Bold: the best of a column, for ours "
    "and for the paper's separately."
)

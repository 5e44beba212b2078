"""What the paper leaves open and what was chosen, to be read beside the tables."""

from __future__ import annotations

from kernelseed.reproduction.plan import BATCH_SIZE, NETWORKS

KL_WEIGHTS = {
    "automatic": "min(1, N / number of weights)",
    "blundell": "Bayes by Backprop's 2^(M-i) / (2^M - 1) over the M batches of an epoch",
    "uniform": "1, so that the loss is the evidence lower bound itself",
}

NOTES: tuple[str, ...] = (
    f"Not printed in the paper, chosen here: batches of {BATCH_SIZE}, {{augmentation}}, Adam; torchvision's stem on "
    "MNIST and Fashion-MNIST, which the latter's baseline fits, and a 3x3 stem without pooling on CIFAR.",
    "Where sigma starts: the paper names no offset, but a rho that starts at 0 is a sigma of .69, many times a weight. "
    "KSN and BNN both start at rho = -5 here, a sigma of .0067.",
    "The KL's weight in KSN and BNN: {weight}. The paper refers to Bayes by Backprop and prints none. `--kl` "
    "sets another: `--kl blundell` is Bayes by Backprop's own.",
    "Seeds: C_pip = ceil(delta C_f), so at delta .25 the ten-class head has rank 3; Glorot's start.",
    "VOGN is trained with Vadam, as in the paper, at a rate of 1e-2 instead of 1e-3 and with noise of .01 at the "
    "start; with the paper's ten draws a step, unless its row says another number. † Its softmax is applied once. The "
    "paper's NLL and calibration of VOGN lie where a softmax applied twice puts them, and can't be compared; "
    "accuracies can.",
    "Dropout at .1 is inside each residual block, after its first activation; the paper does not say where.",
    "ECE, ACE and MCE over 15 bins of equal width; the paper does not print the number. ACE is the plain mean over "
    "bins that are not empty.",
    "E: the average of ten draws. P: the posterior mean. In the paper's rows, BatchNorm's {statistics}.",
)


def notes(kl: str, augment: bool, update_bn: int) -> list[str]:
    """What is to be read beside a table whose paper's rows had these settings (see `Plan`)."""
    chosen = {
        "weight": KL_WEIGHTS.get(kl, kl),
        "augmentation": "random crops and flips" if augment else "no augmentation",
        "statistics": f"statistics are re-estimated for each draw from {update_bn:,} training images"
        if update_bn
        else "running statistics, also for draws that they do not fit",
    }
    return [note.format_map(chosen) for note in NOTES]


OWN_DEFAULTS = (
    "With this library's own defaults: seeds of at least 16 channels that start at the plain network's weights, the "
    "KL's weight min(1, N / number of weights), BatchNorm re-estimated for each draw from "
    f"{NETWORKS['ours-bnn'].update_bn:,} training images. KSN and BNN get the same care. Where "
    "BNN has that weight of the KL above too, its training is the same, and the last of these is all that differs."
)

MARKS = (
    "Ours (the paper's). ▲ ours is better, ▼ worse: in accuracy by more than two standard errors of a difference over "
    "10,000 images, in the other columns by more than a fifth. Best of each column in bold, ours and the paper's each."
)

"""Checks of the arguments of metrics. Each check returns its argument as float64, int64 or bool on the CPU."""

import torch
from torch import Tensor

from kernelseed.errors import ArgumentError, ArgumentTypeError


def check_probs(probs: Tensor) -> Tensor:
    """probs as float64 on the CPU, or an error that says what is wrong with them."""
    check_floating(probs, "probs")
    if probs.ndim != 2 or probs.numel() == 0:
        raise ArgumentError(
            f"probs has shape {tuple(probs.shape)}; it must be (examples, classes) and not empty: "
            "average over draws first, and give one example as probs[None]."
        )
    p = probs.detach().cpu().double()
    remedy = "if they are logits, use logits.softmax(-1)"
    valid = p >= 0  # False for NaN
    if not valid.all():
        row, column = (~valid).nonzero()[0].tolist()
        raise ArgumentError(f"probs is {p[row, column]:.4g} in row {row}; probabilities lie in [0, 1]: {remedy}.")
    # Averages over draws have rounding errors. Half precision is coarse, and float64 may be converted from float32.
    tolerance = max(1e-4, 8 * torch.finfo(probs.dtype).eps)
    total = p.sum(1)
    if len(off := (~((total - 1).abs() <= tolerance)).nonzero()):
        row = int(off[0])
        rule = f"probabilities must sum to 1 (within {tolerance:.2g} in {probs.dtype})"
        raise ArgumentError(f"probs sums to {total[row]:.4g} in row {row}; {rule}: {remedy}.")
    return p


def check_labels(labels: Tensor, probs: Tensor) -> Tensor:
    """labels as int64 on the CPU, or an error that says how they do not fit the (N, K) probs."""
    if (
        not isinstance(labels, Tensor)
        or labels.dtype == torch.bool
        or labels.is_floating_point()
        or labels.is_complex()
    ):
        raise ArgumentTypeError(
            f"labels is a {kind(labels)}; it must be an integer tensor of classes: use labels.long()."
        )
    n, k = probs.shape
    if labels.shape != (n,):
        raise ArgumentError(
            f"labels has shape {tuple(labels.shape)}; it must be ({n},), one class for each row of probs: "
            "use labels.argmax(-1) for one-hot labels, labels.flatten() for a column."
        )
    y = labels.detach().cpu().long()
    if len(off := ((y < 0) | (y >= k)).nonzero()):
        row = int(off[0])
        raise ArgumentError(
            f"labels is {int(y[row])} in row {row}; with {k} classes labels lie in 0..{k - 1}: "
            "count classes from 0, and drop ignored examples first."
        )
    return y


def check_scores(scores: Tensor, name: str) -> Tensor:
    """scores as float64 on the CPU; infinities are allowed, because only the order counts."""
    check_floating(scores, name)
    if scores.ndim != 1 or len(scores) == 0:
        raise ArgumentError(
            f"{name} has shape {tuple(scores.shape)}; it must be (examples,) and not empty: give one per example."
        )
    s = scores.detach().cpu().double()
    if len(off := s.isnan().nonzero()):
        raise ArgumentError(
            f"{name} is nan in row {int(off[0])}; NaN has no rank: drop such examples, or find their cause."
        )
    return s


def check_correct(correct: Tensor, confidence: Tensor) -> Tensor:
    """correct as bool on the CPU, or an error that says how it does not fit confidence."""
    if not isinstance(correct, Tensor) or correct.dtype != torch.bool:
        raise ArgumentTypeError(
            f"correct is a {kind(correct)}; it must be a bool tensor: use probs.argmax(-1) == labels."
        )
    if correct.shape != confidence.shape:
        raise ArgumentError(
            f"correct has shape {tuple(correct.shape)}; it must be that of confidence, {tuple(confidence.shape)}: "
            "give one of each per example."
        )
    return correct.cpu()


def check_floating(value: Tensor, name: str) -> None:
    """Raise unless value is a floating-point tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        remedy = f"use torch.as_tensor({name}).float()"
        raise ArgumentTypeError(f"{name} is a {kind(value)}; it must be a floating-point tensor: {remedy}.")


def check_bins(bins: int) -> None:
    """Raise unless bins is a positive int."""
    if not isinstance(bins, int) or isinstance(bins, bool):
        raise ArgumentTypeError(f"bins is {bins!r}; it must be an int: 15 is the common choice.")
    if bins < 1:
        raise ArgumentError(f"bins is {bins}; it must be at least 1: 15 is the common choice.")


def kind(value: object) -> str:
    """The type of an argument for an error message: "torch.int64 tensor", "ndarray"."""
    return f"{value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__

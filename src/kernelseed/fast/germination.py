"""Germination as matrices: a weight (C_out, C_in, k...) is a matrix (C_f, C_F * prod(k)).

C_f is the smaller and C_F the larger of the weight's first two axes. A germinator (C_f, C_pip) times a seed
(C_pip, C_F, k...) gives the matrix; `fold` reshapes it to the weight.
"""

from __future__ import annotations

import torch
from torch import Tensor


def germinate_matrix(germinators: Tensor, seed: Tensor) -> Tensor:
    """The 1x1 convolution: germinators (C, rank) times seed (rank, C_F * prod(k)); or a batch of both."""
    batched = germinators.dim() == 3
    product, matrix = (torch.bmm, seed.flatten(2)) if batched else (torch.mm, seed.flatten(1))
    if not seed.is_cpu:
        return product(germinators, matrix)
    # A CPU without bfloat16 units is a hundred times slower in bfloat16 than in float32.
    with torch.autocast("cpu", enabled=False):
        return product(germinators, matrix)


def is_transposed(shape: torch.Size) -> bool:
    """Whether C_F, the larger channel axis, is the first axis of the weight; germination then swaps the two."""
    return shape[0] > shape[1]


def fold(matrix: Tensor, shape: torch.Size) -> Tensor:
    """Reshape the germinated matrix (C_f, C_F * prod(k)) to the weight."""
    if not is_transposed(shape):
        return matrix.reshape(shape)
    return matrix.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)


def unfold(weight: Tensor) -> Tensor:
    """Reshape a weight to the matrix (C_f, C_F * prod(k)) of germination: the inverse of `fold`."""
    return (weight.transpose(0, 1) if is_transposed(weight.shape) else weight).flatten(1)

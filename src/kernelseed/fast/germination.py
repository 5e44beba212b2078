"""Germination as matrices: a weight (C_out, C_in, k...) is a matrix (C_f, C_F * prod(k)).

C_f is the smaller and C_F the larger of the weight's first two axes. A germinator (C_f, C_pip) times a seed
(C_pip, C_F, k...) gives the matrix; `fold` reshapes it to the weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelseed.fast import kernels


def germinate_both(mean_germinator: Tensor, rho_germinator: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices of mean and rho: in one product, or rounded as the kernels do it."""
    bf16 = in_bfloat16(seed)
    if not any(bf16):
        mean, rho = germinate_matrix(torch.cat((mean_germinator, rho_germinator)), seed).chunk(2)
        return mean, rho

    def germinated(germinator: Tensor, rounded: bool) -> Tensor:
        # Products of two bfloat16 are exact in float32: only the sums round otherwise than in the kernels.
        factors = (t.bfloat16().float() if rounded else t for t in (germinator, seed))
        return germinate_matrix(*factors)

    return germinated(mean_germinator, bf16[0]), germinated(rho_germinator, bf16[1])


def germinate_matrix(germinators: Tensor, seed: Tensor) -> Tensor:
    """The 1x1 convolution: germinators (C, rank) times seed (rank, C_F * prod(k)); or a batch of both."""
    batched = germinators.dim() == 3
    product, matrix = (torch.bmm, seed.flatten(2)) if batched else (torch.mm, seed.flatten(1))
    if not seed.is_cpu or not torch.is_autocast_enabled("cpu"):
        return product(germinators, matrix)
    # A CPU without bfloat16 units is a hundred times slower in bfloat16 than in float32.
    with torch.autocast("cpu", enabled=False):
        return product(germinators, matrix)


def in_bfloat16(seed: Tensor) -> tuple[bool, bool]:
    """Whether mean, and rho, are germinated from this seed with products of bfloat16 that are summed in float32.

    torch's own switches for float32 products decide. With `torch.set_float32_matmul_precision("high")` it is rho, of
    which three digits are enough; with "medium", and under bfloat16 autocast, both; by default neither. It needs a
    processor with units for it.
    """
    return _as_switched() if seed.is_cpu and seed.dtype == torch.float32 else (False, False)


def _as_switched() -> tuple[bool, bool]:
    library = kernels.library()
    if library is None or not library.ks_has_bf16():
        return False, False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16:
        return True, True
    precision = torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    return precision == "bf16", precision in ("bf16", "tf32")


# What torch.compiler.assume_constant_result sets, which imports the whole compiler.
_as_switched._dynamo_marked_constant = True  # type: ignore[attr-defined]


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

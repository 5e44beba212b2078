"""The fast parts of a draw: C kernels, noise, germination as matrices, thin layers. It needs only torch."""

from kernelseed.fast.costs import Costs, assuming, current_costs, known_costs
from kernelseed.fast.flat import flatten, in_blocks, split, stack, stored_as
from kernelseed.fast.fused import (
    Drawn,
    draw_kernel_seed,
    draw_mean_field,
    scale_mixture_kl,
    supports,
)
from kernelseed.fast.germination import fold, germinate_both, germinate_matrix, in_bfloat16, is_transposed, unfold
from kernelseed.fast.local import LocalWeight
from kernelseed.fast.many_draws import Numbers, draw_values
from kernelseed.fast.one_backward import one_pass
from kernelseed.fast.operators import LOG_SQRT_2PI
from kernelseed.fast.processor import processor_features, processor_kind
from kernelseed.fast.rho_kl import gaussian_kl_of_rho
from kernelseed.fast.taps import TrimmedConv2d, trim
from kernelseed.fast.thin import ProductWeight, thin_is_cheaper, thin_weights
from kernelseed.fast.traced import is_traced

__all__ = [
    "LOG_SQRT_2PI",
    "Costs",
    "Drawn",
    "LocalWeight",
    "Numbers",
    "ProductWeight",
    "TrimmedConv2d",
    "assuming",
    "current_costs",
    "draw_kernel_seed",
    "draw_mean_field",
    "draw_values",
    "flatten",
    "fold",
    "gaussian_kl_of_rho",
    "germinate_both",
    "germinate_matrix",
    "in_bfloat16",
    "in_blocks",
    "is_traced",
    "is_transposed",
    "known_costs",
    "one_pass",
    "processor_features",
    "processor_kind",
    "scale_mixture_kl",
    "split",
    "stack",
    "stored_as",
    "supports",
    "thin_is_cheaper",
    "thin_weights",
    "trim",
    "unfold",
]

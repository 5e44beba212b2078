"""The fast parts of a draw: C kernels, noise, germination as matrices, thin layers. It needs only torch."""

from kernelseed.fast.closed_form import gaussian_kl_of_rho
from kernelseed.fast.fused import (
    LOG_SQRT_2PI,
    Drawn,
    draw_kernel_seed,
    draw_mean_field,
    one_pass,
    scale_mixture_kl,
    supports,
)
from kernelseed.fast.germination import fold, germinate_matrix, is_transposed, unfold
from kernelseed.fast.taps import TrimmedConv2d, trim
from kernelseed.fast.thin import ProductWeight, thin_is_cheaper, thin_weights

__all__ = [
    "LOG_SQRT_2PI",
    "Drawn",
    "ProductWeight",
    "TrimmedConv2d",
    "draw_kernel_seed",
    "draw_mean_field",
    "fold",
    "gaussian_kl_of_rho",
    "germinate_matrix",
    "is_transposed",
    "one_pass",
    "scale_mixture_kl",
    "supports",
    "thin_is_cheaper",
    "thin_weights",
    "trim",
    "unfold",
]

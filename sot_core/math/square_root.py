"""Square root of covariance matrices by Newton-Schulz iteration.

Reference: arXiv:1712.01034 (iSQRT-COV).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sot_core.math.power_iteration import FLOOR
from sot_core.math.precision import at_least_float32, no_autocast

__all__ = ["matrix_square_root"]


def matrix_square_root(matrix: Tensor, num_iters: int = 5) -> Tensor:
    r"""Square root of symmetric positive semi-definite matrices by Newton-Schulz iteration (iSQRT-COV).

    ``A = S / tr S``, ``Y_0 = A``, ``Z_0 = I``; then ``M = (3 I - Z Y) / 2``, ``Y <- Y M``, ``Z <- M Z``; the result is
    ``Y sqrt(tr S)``.

    Every iteration multiplies eigenvalues near 0 by 1.5. At most as many run as bring rounding noise (``d eps tr S``,
    at least ``1e-10 tr S``) to the size of its root: more would only amplify it, until nothing else is left.

    Args:
        matrix: S, symmetric and positive semi-definite.
        num_iters: Iterations (>= 1); for d = 10 at most 17 run in float32 and 29 in float64.

    Shape:
        (..., d, d) -> (..., d, d), in the dtype of ``matrix``; computed in float32 at least. Zero gives 0.

    Raises:
        ValueError: if the matrices are not square or ``num_iters`` is not positive.

    Reference:
        arXiv:1712.01034, equation 4. The gradient is autograd's; the published hand-written one is its transpose,
        which is the same for a symmetric matrix.
    """
    d = matrix.shape[-1]
    if matrix.dim() < 2 or matrix.shape[-2] != d:
        raise ValueError(f"matrix must be (..., d, d), got {tuple(matrix.shape)}")
    if num_iters < 1:
        raise ValueError(f"num_iters must be at least 1, got {num_iters}")
    with no_autocast(matrix):
        y = matrix.to(at_least_float32(matrix.dtype))
        num_iters = min(num_iters, _max_iters(d, y.dtype))
        trace = y.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None].clamp_min(FLOOR)
        y = y / trace
        eye = torch.eye(d, dtype=y.dtype, device=y.device)
        z = eye
        for i in range(num_iters):
            step = 1.5 * eye - 0.5 * (z @ y if i > 0 else y)
            y = y @ step
            if i + 1 < num_iters:
                z = step @ z if i > 0 else step
        return (y * trace.sqrt()).to(matrix.dtype)


def _max_iters(d: int, dtype: torch.dtype) -> int:
    """The n with ``1.5 ** n``, the slope of n iterations at 0, as steep as the chord of the root on rounding noise."""
    noise = max(d * torch.finfo(dtype).eps, FLOOR)
    return math.ceil(math.log(noise**-0.5, 1.5))

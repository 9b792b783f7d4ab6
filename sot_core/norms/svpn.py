"""Singular value power normalisation (svPN) of cross-covariance matrices.

Reference: arXiv:2104.10935, section 3.2.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor, nn

from sot_core.math.power_iteration import FLOOR, leading_triple, scale_by_leading_value
from sot_core.math.precision import at_least_float32, no_autocast
from sot_core.math.svd_power import singular_value_power

__all__ = ["SingularValuePowerNorm", "check_power_norm", "singular_value_power_norm"]


def singular_value_power_norm(
    matrix: Tensor,
    start_vector: Tensor,
    alpha: float = 0.5,
    num_singular_values: int | None = 1,
    num_iters: int = 1,
    residual_eps: float = 0.0,
    exact: bool = False,
) -> Tensor:
    r"""Raise the singular values of a matrix to a power, the largest by power iteration (svPN).

    .. math:: \sum_{i \le r} s_i^\alpha u_i v_i^T + \frac{Q - \sum_{i \le r} s_i u_i v_i^T}{s_r^{1-\alpha} + \epsilon}

    With r = 1 and epsilon = 0 both terms share the factor and the result is ``matrix * s_1 ** (alpha - 1)``: that is
    the fast path, two matrix-vector products and one scale.

    Args:
        matrix: Q, any values; a zero matrix gives 0 with a finite gradient.
        start_vector: Start of every power iteration; its length does not matter.
        alpha: Exponent, in (0, 1].
        num_singular_values: r >= 1, the singular values found one after the other by deflation; None: all of them,
            without a residual term.
        num_iters: Power iterations for each singular value, >= 1; at least 2 when r > 1.
        residual_eps: epsilon >= 0 of the residual term; 1e-5 is the published form. The relative difference of the
            two on the residual is ``residual_eps / s_r ** (1 - alpha)``.
        exact: ``U S^alpha V^T`` over all singular values by SVD instead; the iteration's options are not used.

    Shape:
        matrix (..., q, k), start_vector (k,) -> (..., q, k), in the dtype of ``matrix``; computed in float32 at least.

    Raises:
        ValueError: if a number is out of its range, the start vector does not fit, or r > 1 with one iteration: after
            deflation the residual maps the start vector to exactly 0, so that one step would normalise rounding noise.

    Reference:
        arXiv:2104.10935, equations 4 to 6.
    """
    q, k = matrix.shape[-2:]
    check_power_norm(alpha, num_singular_values, num_iters, residual_eps, exact)
    if start_vector.shape != (k,):
        raise ValueError(f"start_vector must be ({k},) for a matrix of {k} columns, got {tuple(start_vector.shape)}")
    with no_autocast(matrix):
        residual = matrix.to(at_least_float32(matrix.dtype))
        if exact:
            return singular_value_power(residual, alpha).to(matrix.dtype)
        start = start_vector.to(residual.dtype)
        rank = min(q, k) if num_singular_values is None else num_singular_values
        merge = num_singular_values is not None and residual_eps == 0.0  # the last value and the residual: one factor
        floor: Tensor | float = FLOOR if rank == 1 else _noise(residual)
        terms = []
        for _ in range(rank - merge):
            u, s, v = leading_triple(residual, start, num_iters)
            is_zero = torch.linalg.vector_norm(residual.detach(), dim=(-2, -1), keepdim=True) <= floor
            part = torch.where(is_zero, residual, s * (u * v))  # what is only noise is raised linearly, as a whole
            terms.append(part * s.clamp_min(floor).pow(alpha - 1.0))
            residual = residual - part
        if merge:
            terms.append(scale_by_leading_value(residual, start, alpha, num_iters, floor))
        elif num_singular_values is not None:
            terms.append(residual / (s * s.clamp_min(floor).pow(-alpha) + residual_eps))
        return reduce(torch.add, terms).to(matrix.dtype)


def check_power_norm(
    alpha: float, num_singular_values: int | None, num_iters: int, residual_eps: float, exact: bool = False
) -> None:
    """Raise ValueError if an option of :func:`singular_value_power_norm` is out of its range."""
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"alpha must be in (0, 1], got {alpha}")
    if num_iters < 1:
        raise ValueError(f"num_iters must be at least 1, got {num_iters}")
    if num_singular_values is not None and num_singular_values < 1:
        raise ValueError(f"num_singular_values must be at least 1 or None, got {num_singular_values}")
    if residual_eps < 0.0:
        raise ValueError(f"residual_eps must not be negative, got {residual_eps}")
    if num_singular_values != 1 and num_iters < 2 and not exact:
        raise ValueError(
            f"num_singular_values={num_singular_values} needs num_iters >= 2, got {num_iters}: "
            "after deflation one step from the same start vector finds only rounding noise"
        )


def _noise(matrix: Tensor) -> Tensor:
    """The size below which what deflation leaves of a matrix is rounding noise, at least `FLOOR`.

    Shape:
        (..., q, k) -> (..., 1, 1).
    """
    q, k = matrix.shape[-2:]
    scale = matrix.detach().abs().amax(dim=(-2, -1), keepdim=True).clamp_min(FLOOR)  # squares do not overflow
    size: Tensor = torch.linalg.vector_norm(matrix.detach() / scale, dim=(-2, -1), keepdim=True) * scale
    return (size * ((q + k) * torch.finfo(matrix.dtype).eps)).clamp_min(FLOOR)


class SingularValuePowerNorm(nn.Module):
    """Singular value power normalisation with a learnable start vector; see :func:`singular_value_power_norm`.

    Args:
        k_dim: Columns k of the matrices (> 0).
        alpha: Exponent in (0, 1].
        num_singular_values: Singular values found by iteration, >= 1, or None for all.
        num_iters: Power iterations for each, >= 1 (>= 2 for more than one value).
        residual_eps: 0.0, or 1e-5 for the published form.
        exact: By SVD over all singular values; holds no start vector.

    Shape:
        (..., q, k) -> (..., q, k).

    Raises:
        ValueError: as :func:`singular_value_power_norm`.
    """

    def __init__(
        self,
        k_dim: int,
        alpha: float = 0.5,
        num_singular_values: int | None = 1,
        num_iters: int = 1,
        residual_eps: float = 0.0,
        exact: bool = False,
    ) -> None:
        super().__init__()
        check_power_norm(alpha, num_singular_values, num_iters, residual_eps, exact)
        self.alpha = alpha
        self.num_singular_values = num_singular_values
        self.num_iters = num_iters
        self.residual_eps = residual_eps
        self.exact = exact
        self.start_vector = None if exact else nn.Parameter(torch.empty(k_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start vector from a standard normal: almost surely not orthogonal to the leading vector."""
        if self.start_vector is not None:
            nn.init.normal_(self.start_vector)

    def forward(self, matrix: Tensor) -> Tensor:
        start = matrix.new_empty(matrix.shape[-1]) if self.start_vector is None else self.start_vector
        return singular_value_power_norm(
            matrix, start, self.alpha, self.num_singular_values, self.num_iters, self.residual_eps, self.exact
        )

    def extra_repr(self) -> str:
        return (
            f"alpha={self.alpha}, num_singular_values={self.num_singular_values}, num_iters={self.num_iters}, "
            f"residual_eps={self.residual_eps}, exact={self.exact}"
        )

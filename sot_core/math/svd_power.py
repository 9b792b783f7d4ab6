"""Powers of all singular values by SVD, with a gradient that stays finite where the usual SVD backward does not.

The derivative of ``U f(S) V^T`` needs only divided differences of f, not the derivatives of U and V, so repeated and
zero singular values are not a special case.

Reference: Noferini, "A formula for the Frechet derivative of a generalized matrix function", arXiv:1602.01767.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sot_core.math.power_iteration import FLOOR
from sot_core.math.precision import no_autocast

__all__ = ["singular_value_power"]

logger = logging.getLogger(__name__)


def singular_value_power(matrix: Tensor, alpha: float) -> Tensor:
    """``U S^alpha V^T`` over all singular values.

    Singular values below ``max(q, k) * eps * s_1`` (rounding noise of rank-deficient matrices; at least 1e-10) are
    raised linearly, so that the slope at 0 is finite. A matrix with a non-finite entry gives NaN and leaves the
    others of the batch alone.

    Args:
        matrix: float32 or float64.
        alpha: Exponent in (0, 1].

    Shape:
        (..., q, k) -> (..., q, k).
    """
    result: Tensor = _SingularValuePower.apply(matrix, alpha)
    return result


class _SingularValuePower(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, alpha: float) -> Tensor:
        finite = matrix.isfinite().all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
        u, s, vh = _svd(torch.where(finite, matrix, 0.0))
        noise = s[..., :1] * (max(matrix.shape[-2:]) * torch.finfo(s.dtype).eps)
        floor = noise.clamp_min(FLOOR)
        slope = torch.maximum(s, floor).pow(alpha - 1.0)  # f(s) / s
        ctx.save_for_backward(u, s, vh, floor, slope)
        ctx.alpha = alpha
        return torch.where(finite, (u * (s * slope).unsqueeze(-2)) @ vh, torch.nan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        u, s, vh, floor, slope = ctx.saved_tensors
        with no_autocast(grad):
            left, right = u.mT @ grad, grad @ vh.mT
            core = left @ vh.mT
            symmetric, skew = (core + core.mT) / 2.0, (core - core.mT) / 2.0
            inner = _difference_quotient(s, floor, ctx.alpha) * symmetric + _sum_quotient(s, slope) * skew
            rows = slope.unsqueeze(-1) * (left - core @ vh)  # the part of the gradient outside V's rows
            columns = (right - u @ core) * slope.unsqueeze(-2)  # and outside U's columns
            return u @ (inner @ vh + rows) + columns @ vh, None


def _difference_quotient(s: Tensor, floor: Tensor, alpha: float) -> Tensor:
    """``(f(s_i) - f(s_j)) / (s_i - s_j)`` without cancellation, the derivative of f where the two are equal."""
    high = torch.maximum(s.unsqueeze(-1), s.unsqueeze(-2))
    low = torch.minimum(s.unsqueeze(-1), s.unsqueeze(-2))
    floor = floor.unsqueeze(-1)
    curved_high, curved_low = torch.maximum(high, floor), torch.maximum(low, floor)
    ratio = (curved_high - curved_low) / curved_low  # exp(t) - 1 with t = log(high / low)
    quotient = torch.where(ratio > 0.0, torch.expm1(alpha * torch.log1p(ratio)) / ratio, alpha)
    curved = curved_low.pow(alpha - 1.0) * quotient
    share = (curved_high - curved_low) / (high - low)  # of the way from low to high that lies above the floor
    share = torch.where(high > low, share, (high > floor).to(s.dtype))
    return share * curved + (1.0 - share) * floor.pow(alpha - 1.0)


def _sum_quotient(s: Tensor, slope: Tensor) -> Tensor:
    """``(f(s_i) + f(s_j)) / (s_i + s_j)``, the slope of f at 0 where both are 0."""
    power, total = s * slope, s.unsqueeze(-1) + s.unsqueeze(-2)
    quotient = (power.unsqueeze(-1) + power.unsqueeze(-2)) / total
    return torch.where(total > 0.0, quotient, slope.unsqueeze(-1))


def _svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Thin SVD; where the device's routine does not converge, once more in float64 on the CPU."""
    try:
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        logger.warning(
            "SVD of a batch of %d did not converge: computed in float64 on the CPU", matrix[..., 0, 0].numel()
        )
        u, s, vh = torch.linalg.svd(matrix.double().cpu(), full_matrices=False)
        u, s, vh = u.to(matrix), s.to(matrix), vh.to(matrix)
    return u, s, vh

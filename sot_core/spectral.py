"""Powers of all singular values by SVD, with a gradient that stays finite where the usual SVD backward does not.

The derivative of ``U f(S) V^T`` needs only divided differences of f, not the derivatives of U and V, so repeated and
zero singular values are no special case.

Reference: Noferini, "A formula for the Frechet derivative of a generalized matrix function", arXiv:1602.01767.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
        floor = s[..., :1] * (max(matrix.shape[-2:]) * torch.finfo(s.dtype).eps)
        safe = torch.maximum(s, floor.clamp_min(1e-10))
        ctx.save_for_backward(u, s, safe, vh)
        ctx.alpha = alpha
        power = s * safe.pow(alpha - 1.0)
        return torch.where(finite, (u * power[..., None, :]) @ vh, torch.nan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        u, s, safe, vh = ctx.saved_tensors
        slope = safe.pow(ctx.alpha - 1.0)  # f(s) / s
        inner = u.mT @ grad @ vh.mT
        si, sj = s[..., :, None], s[..., None, :]
        fi, fj = (s * slope)[..., :, None], (s * slope)[..., None, :]
        plus = (fi + fj) / (si + sj).clamp_min(1e-30)
        plus = torch.where(si + sj > 0, plus, slope[..., None, :])
        minus = _divided_difference(safe, ctx.alpha)
        symmetric, skew = (inner + inner.mT) / 2, (inner - inner.mT) / 2
        core = minus * symmetric + plus * skew
        ug, gv = u.mT @ grad, grad @ vh.mT
        left = (gv - u @ inner) * slope[..., None, :]  # (I - U U^T) G V f(S)/S
        right = slope[..., :, None] * (ug - inner @ vh)
        return u @ (core @ vh + right) + left @ vh, None


def _divided_difference(s: Tensor, alpha: float) -> Tensor:
    """``(s_i^alpha - s_j^alpha) / (s_i - s_j)`` without cancellation, ``alpha s^(alpha-1)`` at equal values."""
    high = torch.maximum(s[..., :, None], s[..., None, :])
    low = torch.minimum(s[..., :, None], s[..., None, :])
    ratio = (high - low) / low  # exp(t) - 1 with t = log(high / low)
    quotient = torch.expm1(alpha * torch.log1p(ratio)) / ratio
    return low.pow(alpha - 1.0) * torch.where(ratio > 0, quotient, alpha)


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

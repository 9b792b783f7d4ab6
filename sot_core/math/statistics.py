"""Statistics of the valid tokens, channel by channel; half-precision tokens are summed in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from sot_core.math.padding import clear_padding, count_valid
from sot_core.math.precision import at_least_float32

__all__ = ["token_deviation", "token_mean"]


def token_mean(tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Mean of the valid tokens, 0 without any.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, D), of at least float32.
    """
    total = clear_padding(tokens, padding_mask).sum(dim=1, dtype=at_least_float32(tokens.dtype))
    return total / _count(tokens, padding_mask)


def token_deviation(tokens: Tensor, padding_mask: Tensor | None, mean: Tensor) -> Tensor:
    """Standard deviation of the valid tokens around their mean, divided by n; 0 without any, and for equal tokens.

    The deviations are divided by the largest of their channel first: no square overflows or vanishes. The result is
    homogeneous, so that this scale needs no gradient. At 0 the gradient is 0.

    Shape:
        tokens (B, N > 0, D), padding_mask (B, N) bool, True = ignore, mean (B, D) -> (B, D), in the dtype of ``mean``.
    """
    deviations = clear_padding(tokens.to(mean.dtype) - mean.unsqueeze(1), padding_mask)
    scale = deviations.detach().abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(mean.dtype).tiny)
    length: Tensor = torch.linalg.vector_norm(deviations / scale, dim=1)
    count = _count(tokens, padding_mask)
    return length * scale.squeeze(1) * (count.to(mean.dtype).rsqrt() if isinstance(count, Tensor) else count**-0.5)


def _count(tokens: Tensor, padding_mask: Tensor | None) -> Tensor | int:
    """The valid tokens of each sample, at least 1: (B, 1), or a number without padding."""
    return max(tokens.shape[1], 1) if padding_mask is None else count_valid(padding_mask).unsqueeze(-1)

"""Normalisations of features: those of a token's heads before a covariance, and the vector before a classifier."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sot_core.math.padding import clear_padding
from sot_core.math.precision import at_least_float32, no_autocast
from sot_core.names import FEATURE_NORMS, HEAD_NORMS

__all__ = [
    "FEATURE_NORMS",
    "HEAD_NORMS",
    "HeadLayerNorm",
    "apply_batch_norm",
    "create_feature_norm",
    "create_head_norm",
]


class HeadLayerNorm(nn.LayerNorm):
    """Layer normalisation of each token's features of each head; weight and bias are common to the heads.

    Args:
        normalized_shape: Width w of a head.

    Shape:
        features (B, N, H * w), padding_mask (B, N) bool, True = ignore -> the same, of at least float32, 0 at padding.
    """

    def forward(self, features: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        dtype, (width,) = at_least_float32(features.dtype), self.normalized_shape
        with no_autocast(features):
            heads = features.to(dtype).view(*features.shape[:-1], features.shape[-1] // width, width)
            normalized = F.layer_norm(heads, (width,), self.weight.to(dtype), self.bias.to(dtype), self.eps)
        return clear_padding(normalized.flatten(2), padding_mask)


def create_head_norm(name: str, width: int) -> HeadLayerNorm | None:
    """Build a normalisation of the heads by its name in :data:`HEAD_NORMS`, None for ``none``.

    Raises:
        ValueError: if the name is unknown.
    """
    if name not in HEAD_NORMS:
        raise ValueError(f"Unknown head_norm {name!r}, expected one of {list(HEAD_NORMS)}")
    return HeadLayerNorm(width) if name == "layer_norm" else None


def create_feature_norm(name: str, width: int) -> nn.BatchNorm1d | None:
    """Build a normalisation of the vector before a classifier by its name in :data:`FEATURE_NORMS`, None for ``none``.

    ``batch_norm`` is BatchNorm without weight and bias, as linear probes have it (arXiv:2111.06377, appendix A.1);
    call it through :func:`apply_batch_norm`.
    """
    return nn.BatchNorm1d(width, affine=False) if name == "batch_norm" else None


def apply_batch_norm(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """Apply BatchNorm; in training, fewer than two rows have no variance: the running statistics serve, unchanged.

    A BatchNorm with statistics over processes, which others wait for, is always called.

    Shape:
        rows (R, P) -> (R, P).
    """
    if norm.training and rows.shape[0] < 2 and type(norm) is nn.BatchNorm1d:
        return F.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    normalized: Tensor = norm(rows)
    return normalized

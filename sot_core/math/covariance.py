"""Cross-covariance of two sets of token features: the formula of every second-order pooling.

Which form of the product runs: in eager mode on the CPU one matrix product for each head, which BLAS reads where the
head lies in the projection; elsewhere one batched product for all heads, which takes one kernel on a GPU and which
compilers and exporters know. Both are torch's own operations, so are all derivatives.

Reference: arXiv:2104.10935, section 3.2 (multi-headed global cross-covariance pooling).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sot_core.math.eager import can_read_values
from sot_core.math.padding import clear_padding, count_valid
from sot_core.math.precision import at_least_float32, no_autocast

__all__ = ["CENTERS", "center_features", "covary", "cross_covariance"]

CENTERS = ("token", "sample", None)


def cross_covariance(x: Tensor, y: Tensor, padding_mask: Tensor | None = None, center: str | None = "token") -> Tensor:
    r"""Cross-covariance ``X^T Y / n`` of each head over the valid tokens.

    Args:
        x: First features.
        y: Second features.
        padding_mask: True at tokens to ignore: they count neither in the sums nor in n, whatever they hold.
        center: ``"token"`` subtracts each channel's mean over the valid tokens (a true cross-covariance);
            ``"sample"`` subtracts one scalar per sample and head, the mean over tokens and channels together,
            from x and from y, as the published SoT code does; None subtracts nothing.

    Shape:
        x (B, H, N, q), y (B, H, N, k), padding_mask (B, N) -> (B, H, q, k), of at least float32: half-precision
        features are summed in float32 and the result is not rounded back. B batch, H heads, N word tokens, q and k
        the widths of the two projections. A sample without a valid token gives 0.

    Raises:
        ValueError: if the shapes do not fit together or ``center`` is not one of the three.

    Reference:
        arXiv:2104.10935, equation 2.
    """
    if x.dim() != 4 or y.dim() != 4 or x.shape[:3] != y.shape[:3]:
        raise ValueError(f"x and y must be (B, H, N, q) and (B, H, N, k), got {tuple(x.shape)} and {tuple(y.shape)}")
    if padding_mask is not None and padding_mask.shape != (x.shape[0], x.shape[2]):
        raise ValueError(f"padding_mask must be (B, N) = {(x.shape[0], x.shape[2])}, got {tuple(padding_mask.shape)}")
    if center not in CENTERS:
        raise ValueError(f"Unknown center {center!r}, expected one of {list(CENTERS)}")
    num_heads = x.shape[1]
    x, y = (clear_padding(features.transpose(1, 2).flatten(2), padding_mask) for features in (x, y))
    return covary(x, y, num_heads, padding_mask, center)


def covary(x: Tensor, y: Tensor, num_heads: int, padding_mask: Tensor | None, center: str | None) -> Tensor:
    """:func:`cross_covariance` of features as projections give them: all heads' channels side by side, 0 at padding.

    The centring matrix J is idempotent, ``(J X)^T (J Y) = X^T (J Y)``, so that ``"token"`` centres the narrower factor
    alone. That one factor is 0 at padding is enough as well.

    Shape:
        x (B, N, H * q), y (B, N, H * k), padding_mask (B, N) -> (B, H, q, k).
    """
    with no_autocast(x):
        x, y = (features.to(at_least_float32(features.dtype)) for features in (x, y))
        count = _count(x, padding_mask)
        if center == "sample":
            x, y = (_subtract_mean(features, num_heads, count, center) for features in (x, y))
            x = clear_padding(x, padding_mask)
        elif center == "token" and x.shape[-1] < y.shape[-1]:
            x = _subtract_mean(x, num_heads, count, center)
        elif center == "token":
            y = _subtract_mean(y, num_heads, count, center)
        return _multiply(x, y, num_heads) / count.unsqueeze(-1)


def center_features(features: Tensor, padding_mask: Tensor | None, center: str | None) -> Tensor:
    """Centre the features (B, N, q) of one head, 0 at padding before and after; float32 at least."""
    features = features.to(at_least_float32(features.dtype))
    if center is None:
        return features
    return clear_padding(_subtract_mean(features, 1, _count(features, padding_mask), center), padding_mask)


def _multiply(x: Tensor, y: Tensor, num_heads: int) -> Tensor:
    """``X^T Y`` of each head; see the module's docstring."""
    q, k = x.shape[-1] // num_heads, y.shape[-1] // num_heads
    if can_read_values(x):
        heads = zip(torch.split(x, q, dim=-1), torch.split(y, k, dim=-1), strict=True)
        return torch.stack([torch.bmm(a.mT, b) for a, b in heads], dim=1)
    x, y = (part.view(*part.shape[:-1], num_heads, width).transpose(1, 2) for part, width in ((x, q), (y, k)))
    return x.mT @ y


def _subtract_mean(features: Tensor, num_heads: int, count: Tensor, center: str) -> Tensor:
    """Centre features that are 0 at padding; the result is not."""
    if center == "token":
        return features - features.sum(dim=1, keepdim=True) / count
    B, N, width = features.shape
    heads = features.view(B, N, num_heads, width // num_heads)
    return (heads - heads.sum(dim=(1, 3), keepdim=True) / (count.unsqueeze(-1) * heads.shape[-1])).flatten(2)


def _count(features: Tensor, padding_mask: Tensor | None) -> Tensor:
    """The valid tokens of each sample, at least 1: (B, 1, 1), or (1, 1, 1) without padding."""
    if padding_mask is None:
        return features.new_full((1, 1, 1), max(1, features.shape[1]))
    return count_valid(padding_mask).to(features.dtype).view(-1, 1, 1)

"""Cross-covariance of two sets of token features.

Reference: arXiv:2104.10935, section 3.2 (multi-headed global cross-covariance pooling).
"""

from __future__ import annotations

from torch import Tensor

from sot_core.runtime import at_least_float32, no_autocast

__all__ = ["CENTERS", "center_features", "cross_covariance", "valid_counts"]

CENTERS = ("token", "sample", None)


def valid_counts(padding_mask: Tensor) -> Tensor:
    """Count the valid tokens of each sample, at least 1 so that a row without any divides safely.

    Shape:
        padding_mask (B, N) bool, True = ignore -> (B,) int64.
    """
    return (~padding_mask).sum(dim=-1).clamp_min(1)


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
        arXiv:2104.10935, equation 2. Centring one of x and y is enough for ``"token"``: the centring matrix is
        idempotent, so ``(J X)^T (J Y) = X^T (J Y)``. It is done on the narrower one.
    """
    if x.dim() != 4 or y.dim() != 4 or x.shape[:3] != y.shape[:3]:
        raise ValueError(f"x and y must be (B, H, N, q) and (B, H, N, k), got {tuple(x.shape)} and {tuple(y.shape)}")
    if padding_mask is not None and padding_mask.shape != (x.shape[0], x.shape[2]):
        raise ValueError(f"padding_mask must be (B, N) = {(x.shape[0], x.shape[2])}, got {tuple(padding_mask.shape)}")
    if center not in CENTERS:
        raise ValueError(f"Unknown center {center!r}, expected one of {list(CENTERS)}")

    x_center = y_center = center
    if center == "token" and x.shape[-1] < y.shape[-1]:
        y_center = None
    elif center == "token":
        x_center = None
    with no_autocast(x):
        x = center_features(x, padding_mask, x_center)
        y = center_features(y, padding_mask, y_center)
        return x.mT @ y / _count(x, padding_mask)


def center_features(features: Tensor, padding_mask: Tensor | None, center: str | None) -> Tensor:
    """Features (B, H, N, q) in float32 at least, centred as ``center`` says, 0 at padding."""
    features = features.to(at_least_float32(features.dtype))
    pad = None if padding_mask is None else padding_mask[:, None, :, None]
    if pad is not None:
        features = features.masked_fill(pad, 0.0)
    if center is None:
        return features
    if center == "token":
        mean = features.sum(dim=-2, keepdim=True) / _count(features, padding_mask)
    else:
        mean = features.sum(dim=(-2, -1), keepdim=True) / (_count(features, padding_mask) * features.shape[-1])
    centered = features - mean
    return centered if pad is None else centered.masked_fill(pad, 0.0)


def _count(features: Tensor, padding_mask: Tensor | None) -> Tensor | int:
    """The valid tokens of each sample, at least 1, to divide (B, H, q, k) by."""
    if padding_mask is None:
        return max(features.shape[2], 1)
    return valid_counts(padding_mask).to(features.dtype)[:, None, None, None]

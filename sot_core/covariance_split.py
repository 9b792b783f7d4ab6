"""Exact contributions of the tokens for second-order poolings, whose covariance is a sum over the tokens.

If the normalisation multiplies each matrix by a scalar g, as svPN of one value does, the logit with the weights W is
the sum of ``g x_t^T W y_t / n``. If it is homogeneous of degree d, Euler's theorem gives ``<gradient of the logit with
respect to Q, x_t y_t^T> / (d n)``; this is computed in float64, which separates zero singular values from rounding
noise. x and y are centred as in the covariance. No tensor holds a matrix for each token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sot_core.covariance_pooling import CovariancePool, DropCovPool, GlobalCovariancePool, MomentPool
from sot_core.math.covariance import center_features, covary
from sot_core.math.padding import count_valid
from sot_core.norms.alternatives import LearnableScale, Scale
from sot_core.norms.svpn import SingularValuePowerNorm
from sot_core.pooling import MultiheadCrossCovariancePool

__all__ = ["split_covariance", "split_cross_covariance", "split_moments"]

CHUNK_SIZE = 2**22  # numbers of the largest temporary; classes are computed a few at a time
SQUARE_ROOT_DEGREE = 0.5


def split_cross_covariance(
    pool: MultiheadCrossCovariancePool, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor
) -> Tensor:
    """MGCrP with a normalisation that is a scalar factor or homogeneous.

    Shape:
        tokens (B, N, D), padding_mask (B, N), weight (K, P) -> (B, K, N).

    Raises:
        ValueError: if the normalisation is neither.
    """
    projected = pool.proj(tokens, padding_mask)
    x, y = torch.split(projected, [pool.num_heads * pool.q_dim, pool.num_heads * pool.k_dim], dim=-1)
    if pool.x_norm is not None and pool.y_norm is not None:
        x, y = pool.x_norm(x, padding_mask), pool.y_norm(y, padding_mask)
    is_scaled = _is_scalar_gain(pool.norm)
    if not is_scaled:
        x, y = x.double(), y.double()
    matrix = covary(x, y, pool.num_heads, padding_mask, pool.center)
    x, y = (_center_heads(features, pool.num_heads, padding_mask, pool.center) for features in (x, y))
    y = _divide_by_count(y, padding_mask)
    weight = weight.reshape(-1, pool.num_heads, pool.q_dim, pool.k_dim)
    if is_scaled:
        return _sum_products(x, y * _gain(matrix, pool.norm(matrix)), weight)
    degree = _degree(pool.norm)
    if pool.norm.exact or pool.norm.num_singular_values is None:
        x, y = _project_to_range(matrix, x, y)
    return _split_homogeneous(pool.norm, degree, matrix, x, y, weight)


def split_covariance(pool: CovariancePool, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor) -> Tensor:
    """The upper triangle of a covariance (DropCov) or of its square root (GCP).

    Shape:
        tokens (B, N, D), padding_mask (B, N), weight (K, P) -> (B, K, N).

    Raises:
        ValueError: for any other covariance pooling.
    """
    projected = pool.proj(tokens, padding_mask)
    if pool.feature_norm is not None:
        projected = pool.feature_norm(projected, padding_mask)
    features = center_features(projected.double(), padding_mask, pool.center)
    x = features.unsqueeze(1)
    y = _divide_by_count(x, padding_mask)
    full = weight.new_zeros(len(weight), pool.dim * pool.dim).index_copy(1, pool.triangle, weight)
    full = full.view(-1, 1, pool.dim, pool.dim)
    if isinstance(pool, DropCovPool):
        return _sum_products(x.to(weight.dtype), y.to(weight.dtype), full)
    if not isinstance(pool, GlobalCovariancePool):
        raise ValueError(f"{type(pool).__name__} has no exact split into tokens")
    matrix = covary(features, features, 1, padding_mask, center=None)  # (B, 1, d, d)
    return _split_homogeneous(pool.transform, SQUARE_ROOT_DEGREE, matrix, x, y, full)


def split_moments(pool: MomentPool, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor) -> Tensor:
    """Moments between neighbouring heads, divided by their common norm.

    Shape:
        tokens (B, N, D), padding_mask (B, N), weight (K, P) -> (B, K, N).
    """
    projected = pool.proj(tokens, padding_mask)
    heads = pool.feature_norm(projected, padding_mask).unflatten(2, (-1, pool.dim)).transpose(1, 2)
    x, y = heads[:, :-1], _divide_by_count(heads[:, 1:], padding_mask)
    moments, pooled = (x.mT @ y).flatten(1), pool.pool(projected, padding_mask)
    y = y * _gain(moments[:, None, :, None], pooled[:, None, :, None])
    return _sum_products(x, y, weight.reshape(len(weight), -1, pool.dim, pool.dim))


def _is_scalar_gain(norm: nn.Module) -> bool:
    """Whether a normalisation multiplies each matrix by a scalar."""
    if isinstance(norm, SingularValuePowerNorm):
        return norm.num_singular_values == 1 and norm.residual_eps == 0.0 and not norm.exact
    return isinstance(norm, (Scale, LearnableScale, nn.Identity))


def _degree(norm: nn.Module) -> float:
    """The degree of a homogeneous normalisation."""
    if isinstance(norm, SingularValuePowerNorm):
        if norm.exact or norm.residual_eps == 0.0:
            return norm.alpha
        raise ValueError(f"svPN with residual_eps={norm.residual_eps:g} has no exact split into tokens; use 0")
    raise ValueError(f"the normalization {type(norm).__name__} has no exact split into tokens: it is not homogeneous")


def _gain(before: Tensor, after: Tensor) -> Tensor:
    """The factor between two matrices, computed at the largest entry; 0 for a zero matrix.

    Shape:
        (B, H, q, k) twice -> (B, H, 1, 1).
    """
    before, after = before.flatten(2), after.flatten(2)
    place = before.abs().argmax(dim=-1, keepdim=True)
    largest = before.gather(-1, place)
    gain = after.gather(-1, place) / torch.where(largest == 0.0, 1.0, largest)
    return gain.unsqueeze(-1)


def _project_to_range(matrix: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Project the features onto the range of Q.

    Their other components cancel in the sum over the tokens. In these directions, the power of a zero singular value
    has no derivative, and that of rounding noise a very large one.

    Shape:
        matrix (B, H, q, k), x (B, H, N, q), y (B, H, N, k) -> x and y.
    """
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    noise = s[..., :1] * (max(matrix.shape[-2:]) * torch.finfo(s.dtype).eps)  # as in `singular_value_power`
    is_range = (s > noise).to(s.dtype).unsqueeze(-2)
    u, v = u * is_range, vh.mT * is_range
    return x @ u @ u.mT, y @ v @ v.mT


def _split_homogeneous(
    function: Callable[[Tensor], Tensor], degree: float, matrix: Tensor, x: Tensor, y: Tensor, weight: Tensor
) -> Tensor:
    """Euler's theorem for a function of the matrices (B, H, q, k); other shapes as :func:`_sum_products`."""
    parts = [weight.new_zeros(len(x), 0, x.shape[2])]
    for chunk in torch.split(weight, max(1, CHUNK_SIZE // max(1, matrix.numel()))):
        repeated = matrix.detach().repeat(len(chunk), 1, 1, 1).requires_grad_()
        with torch.enable_grad():
            transformed = function(repeated)
        cotangents = chunk.to(matrix.dtype).repeat_interleave(len(matrix), dim=0).view_as(repeated)
        (gradient,) = torch.autograd.grad(transformed, repeated, cotangents)
        for directions in gradient.chunk(len(chunk)):  # (B, H, q, k)
            sums = ((x @ directions) * y).sum(dim=(1, 3)) / degree
            parts.append(sums.unsqueeze(1).to(weight.dtype))
    return torch.cat(parts, dim=1)


def _sum_products(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """``x_t^T W_c y_t`` summed over the heads, a few classes at a time.

    Shape:
        x (B, H, N, q), y (B, H, N, k), weight (K, H, q, k) -> (B, K, N).
    """
    parts = [x.new_zeros(len(x), 0, x.shape[2])]
    for chunk in torch.split(weight, max(1, CHUNK_SIZE // max(1, y.numel()))):
        products = torch.einsum("bhnq,chqk->bchnk", x, chunk)
        parts.append(torch.einsum("bchnk,bhnk->bcn", products, y))
    return torch.cat(parts, dim=1)


def _center_heads(features: Tensor, num_heads: int, padding_mask: Tensor | None, center: str | None) -> Tensor:
    """Projected tokens (B, N, H * w), each head centred as in the covariance, 0 at padding: (B, H, N, w)."""
    heads = features.chunk(num_heads, dim=-1)
    return torch.stack([center_features(head, padding_mask, center) for head in heads], dim=1)


def _divide_by_count(features: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Divide (B, H, N, w) by the number of valid tokens of each sample."""
    if padding_mask is None:
        return features / features.shape[2]
    return features / count_valid(padding_mask).to(features.dtype).view(-1, 1, 1, 1)

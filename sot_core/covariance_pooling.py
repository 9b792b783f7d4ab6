"""Poolings of one projection: GCP, DropCov and Moment Probing."""

from __future__ import annotations

import torch
from torch import Tensor

from sot_core.math.covariance import center_features, covary
from sot_core.math.square_root import matrix_square_root
from sot_core.norms.features import HeadLayerNorm, create_head_norm
from sot_core.pooling import SecondOrderPooling, check_center, check_sizes
from sot_core.projection import create_projection

__all__ = ["CovariancePool", "DropCovPool", "GlobalCovariancePool", "MomentPool"]

LENGTH_EPS = 1e-6  # of a squared length, for a finite gradient at 0
MAX_DROP = 0.9  # the largest rate of a channel


class CovariancePool(SecondOrderPooling):
    """Base of the poolings into the upper triangle of the covariance matrix of one projection.

    Args:
        embed_dim: Token width D (> 0).
        dim: Width d of the projection (> 0), the side of the covariance matrix.
        center: ``"token"`` (a covariance), ``"sample"`` or None, as :func:`~sot_core.math.covariance.cross_covariance`.
        projection: ``"linear"`` or ``"batch_norm_relu"``.
        head_norm: Normalisation of each token's projected features: ``"layer_norm"`` (module ``feature_norm``) or
            ``"none"``.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, d * (d + 1) / 2), in the dtype of ``tokens``.

    Raises:
        ValueError: if a size is not positive or a name unknown.
    """

    triangle: Tensor

    def __init__(
        self,
        embed_dim: int,
        dim: int,
        center: str | None = "token",
        projection: str = "linear",
        head_norm: str = "none",
    ) -> None:
        super().__init__()
        check_sizes(embed_dim=embed_dim, dim=dim)
        check_center(center)
        self.dim, self.center = dim, center
        self.out_dim = dim * (dim + 1) // 2
        self.proj = create_projection(projection, embed_dim, dim, bias=projection == "linear")
        self.feature_norm = create_head_norm(head_norm, dim)
        rows, columns = torch.triu_indices(dim, dim)
        self.register_buffer("triangle", rows * dim + columns, False)

    def transform(self, covariance: Tensor) -> Tensor:
        """What happens to the covariance matrices (B, d, d) before the triangle is taken."""
        raise NotImplementedError

    def pool(self, projected: Tensor, padding_mask: Tensor | None) -> Tensor:
        if self.feature_norm is not None:
            projected = self.feature_norm(projected, padding_mask)
        x = center_features(projected, padding_mask, self.center)  # both factors: the matrix stays semi-definite
        covariance = covary(x, x, 1, padding_mask, center=None)[:, 0]
        return self.transform(covariance).flatten(1).index_select(1, self.triangle)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, center={self.center!r}"


class GlobalCovariancePool(CovariancePool):
    """Pool word tokens into the square root of their covariance matrix, upper triangle (GCP with iSQRT-COV).

    Args:
        embed_dim: Token width D (> 0).
        dim: Width d of the projection (> 0), the side of the covariance matrix.
        num_iters: Newton-Schulz iterations (>= 1).
        center: As :class:`CovariancePool`, and so the following.
        projection: ``"linear"`` or ``"batch_norm_relu"``.
        head_norm: ``"layer_norm"`` or ``"none"``.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, d * (d + 1) / 2), in the dtype of ``tokens``.

    Raises:
        ValueError: if a size is not positive or a name unknown.

    Reference:
        arXiv:1712.01034. The covariance is over the n valid tokens; the published SoT code divides by the channel
        count d, so that its output is this one times ``sqrt(n / d)``.
    """

    def __init__(
        self,
        embed_dim: int,
        dim: int,
        num_iters: int = 5,
        center: str | None = "token",
        projection: str = "linear",
        head_norm: str = "none",
    ) -> None:
        check_sizes(num_iters=num_iters)
        super().__init__(embed_dim, dim, center, projection, head_norm)
        self.num_iters = num_iters

    def transform(self, covariance: Tensor) -> Tensor:
        return matrix_square_root(covariance, self.num_iters)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_iters={self.num_iters}, center={self.center!r}"


class DropCovPool(CovariancePool):
    """Pool word tokens into their covariance matrix, with adaptive channel dropout before it in training (DropCov).

    There is no normalisation after the covariance: decorrelation comes from dropping channels of the features, at a
    rate of its own for each channel of each sample. At inference nothing is dropped or computed for it.

    Args:
        embed_dim: Token width D (> 0).
        dim: Width d of the projection (> 0), the side of the covariance matrix.
        drop_rate: Mean rate of the dropped channels in training, in [0, 1).
        center: As :class:`CovariancePool`, and so the following.
        projection: ``"linear"`` or ``"batch_norm_relu"``.
        head_norm: ``"layer_norm"`` or ``"none"``.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, d * (d + 1) / 2), in the dtype of ``tokens``.

    Raises:
        ValueError: if a size is not positive or a name unknown.

    Reference:
        DropCov, NeurIPS 2022 (Wang, Gao, Zhang, Xie, Li, Hu). From the paper's abstract: the covariance without
        post-normalisation, an adaptive channel dropout on the features right before it, which trades decorrelation
        against preserved information, and that it is free at inference. Chosen here, for the paper's formula was not
        accessible: the rule of :meth:`drop_rates`, its mean, and that kept channels are divided by their probability.
    """

    def __init__(
        self,
        embed_dim: int,
        dim: int,
        drop_rate: float = 0.5,
        center: str | None = "token",
        projection: str = "linear",
        head_norm: str = "none",
    ) -> None:
        if not 0.0 <= drop_rate < 1.0:
            raise ValueError(f"drop_rate must be in [0, 1), got {drop_rate}")
        super().__init__(embed_dim, dim, center, projection, head_norm)
        self.drop_rate = drop_rate

    def transform(self, covariance: Tensor) -> Tensor:
        if not self.training or self.drop_rate == 0.0:
            return covariance
        keep = 1.0 - self.drop_rates(covariance.detach())
        factors = (torch.rand_like(keep) < keep) / keep
        return covariance * factors.unsqueeze(-1) * factors.unsqueeze(-2)  # the covariance of the scaled channels

    def drop_rates(self, covariance: Tensor) -> Tensor:
        r"""The rate at which each channel is dropped, from its correlation and importance.

        .. math:: p_c = \min(0.9, r\,s_c / \bar s), \quad s_c = \pi_c (1 - \omega_c)

        with the mean absolute correlation :math:`\pi_c` of channel c with the others, its share :math:`\omega_c` of the
        variance of all channels, the mean :math:`\bar s` over the channels and r = ``drop_rate``: a channel goes the
        more often, the more of it the other channels say and the less of the variance it holds.

        Shape:
            covariance (B, d, d) -> (B, d), each in [0, 0.9].
        """
        tiny = torch.finfo(covariance.dtype).tiny
        variance = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0)
        scale = variance.clamp_min(tiny).rsqrt()
        correlation = (covariance * scale.unsqueeze(-1) * scale.unsqueeze(-2)).abs()
        others = correlation.sum(dim=-1) - correlation.diagonal(dim1=-2, dim2=-1)
        largest = variance.amax(dim=-1, keepdim=True).clamp_min(tiny)
        share = variance / largest
        share = share / share.sum(dim=-1, keepdim=True).clamp_min(1.0)
        score = others.clamp_min(0.0) / max(self.dim - 1, 1) * (1.0 - share)
        return (self.drop_rate * score / score.mean(dim=-1, keepdim=True).clamp_min(tiny)).clamp_max(MAX_DROP)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, drop_rate={self.drop_rate:g}, center={self.center!r}"


class MomentPool(SecondOrderPooling):
    r"""Pool word tokens into second moments between neighbouring heads, to unit length (Moment Probing).

    The projected features are split into heads :math:`X_1 \dots X_H`, each of which a layer normalisation brings to
    one scale. The second moments are :math:`X_h^T X_{h+1} / n`, h = 1 ... H - 1, not centred; flattened row by row and
    concatenated, they are divided by their common length.

    Args:
        embed_dim: Token width D (> 0).
        num_heads: Heads H (> 1).
        dim: Width q of a head (> 0), the side of the matrices.
        projection: ``"linear"`` or ``"batch_norm_relu"``.
        proj_bias: Whether the linear projection has a bias.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, (H - 1) * q * q), in the dtype of ``tokens``.

    Raises:
        ValueError: if a size is too small or a name unknown.

    Reference:
        arXiv:2307.11342 (ICCV 2023). The paper classifies from first and second moments: the first one comes as the
        class token of ``sum_fc`` and ``concat``. It reduces the matrices by small convolutions, which are left out
        here: the matrices have no neighbourhood, and their form was not accessible. Where layer normalisation and unit
        length stand is chosen here.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dim: int, projection: str = "linear", proj_bias: bool = False
    ) -> None:
        super().__init__()
        check_sizes(embed_dim=embed_dim, num_heads=num_heads, dim=dim)
        if num_heads < 2:
            raise ValueError(f"num_heads must be at least 2 for moments between neighbouring heads, got {num_heads}")
        self.num_heads, self.dim = num_heads, dim
        self.out_dim = (num_heads - 1) * dim * dim
        self.proj = create_projection(projection, embed_dim, num_heads * dim, bias=proj_bias)
        self.feature_norm = HeadLayerNorm(dim)

    def pool(self, projected: Tensor, padding_mask: Tensor | None) -> Tensor:
        heads = self.feature_norm(projected, padding_mask)
        x, y = heads[..., : -self.dim], heads[..., self.dim :]
        moments = covary(x, y, self.num_heads - 1, padding_mask, center=None).flatten(1)
        return moments * (moments.square().sum(dim=-1, keepdim=True) + LENGTH_EPS).rsqrt()

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, dim={self.dim}"

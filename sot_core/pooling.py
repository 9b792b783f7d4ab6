"""Poolings: word tokens to one vector.

Each pooling is a module with an ``out_dim`` and ``forward(tokens, padding_mask=None)``, made from a
:class:`~sot_core.config.HeadConfig` by its ``from_config``; :mod:`sot_core.factory` lists them by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from sot_core.covariance import cross_covariance, valid_counts
from sot_core.power_norm import matrix_square_root
from sot_core.projection import create_projection

if TYPE_CHECKING:
    from sot_core.config import HeadConfig

__all__ = ["GlobalAveragePool", "GlobalCovariancePool", "MultiheadCrossCovariancePool"]


class MultiheadCrossCovariancePool(nn.Module):
    r"""Pool word tokens into one normalised cross-covariance matrix per head (MGCrP).

    Head h projects the tokens twice, ``X = Z W_h`` and ``Y = Z R_h``, and takes ``norm(X^T Y / n)``, see
    :func:`~sot_core.covariance.cross_covariance`. The heads' matrices are flattened row by row and concatenated.

    Args:
        embed_dim: Token width D (> 0).
        num_heads: Heads H (> 0).
        q_dim: Width q of the first projection (> 0), the rows of the matrices.
        k_dim: Width k of the second projection (> 0), the columns; None: as ``q_dim``.
        norm: Module mapping (B, H, q, k) to the same shape; None: none.
        center: ``"token"``, ``"sample"`` or None.
        projection: ``"linear"`` or ``"batch_norm_relu"`` (the So-ViT head: linear, BatchNorm, ReLU).
        proj_bias: Whether the linear projection has a bias; without effect on a ``center="token"`` covariance.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, H * q * k), in the dtype of ``tokens``.
        The one projection's weight is (H * q + H * k, D): first the q-part head by head, then the k-part.

    Raises:
        ValueError: if a size is not positive or a name unknown; never for a row without valid tokens: that gives 0.

    Reference:
        arXiv:2104.10935, section 3.2, equations 2 and 3. The published code centres as ``center="sample"``.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        q_dim: int,
        k_dim: int | None = None,
        norm: nn.Module | None = None,
        center: str | None = "token",
        projection: str = "linear",
        proj_bias: bool = False,
    ) -> None:
        super().__init__()
        k_dim = q_dim if k_dim is None else k_dim
        for name, size in (("embed_dim", embed_dim), ("num_heads", num_heads), ("q_dim", q_dim), ("k_dim", k_dim)):
            if size < 1:
                raise ValueError(f"{name} must be positive, got {size}")
        self.num_heads, self.q_dim, self.k_dim, self.center = num_heads, q_dim, k_dim, center
        self.out_dim = num_heads * q_dim * k_dim
        self.proj = create_projection(projection, embed_dim, num_heads * (q_dim + k_dim), bias=proj_bias)
        self.norm = nn.Identity() if norm is None else norm

    @classmethod
    def from_config(cls, config: HeadConfig) -> Self:
        """Build the pooling that a head configuration describes."""
        from sot_core.factory import create_normalization

        return cls(
            config.embed_dim,
            config.num_heads,
            config.q_dim,
            config.k_dim,
            norm=create_normalization(config),
            center=config.center,
            projection=config.projection,
            proj_bias=config.proj_bias,
        )

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        B, N, _ = tokens.shape
        projected = self.proj(tokens, padding_mask)
        x, y = projected.split((self.num_heads * self.q_dim, self.num_heads * self.k_dim), dim=-1)
        x = x.view(B, N, self.num_heads, self.q_dim).transpose(1, 2)  # (B, H, N, q)
        y = y.view(B, N, self.num_heads, self.k_dim).transpose(1, 2)  # (B, H, N, k)
        matrix: Tensor = self.norm(cross_covariance(x, y, padding_mask, self.center))  # (B, H, q, k)
        return matrix.flatten(1).to(tokens.dtype)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, q_dim={self.q_dim}, k_dim={self.k_dim}, center={self.center!r}"


class GlobalCovariancePool(nn.Module):
    """Pool word tokens into the square root of their covariance matrix, upper triangle (GCP with iSQRT-COV).

    Args:
        embed_dim: Token width D (> 0).
        dim: Width d of the projection (> 0), the side of the covariance matrix.
        num_iters: Newton-Schulz iterations (>= 1).
        center: ``"token"`` (a covariance), ``"sample"`` or None, as :func:`~sot_core.covariance.cross_covariance`.
        projection: ``"linear"`` or ``"batch_norm_relu"``.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, d * (d + 1) / 2), in the dtype of ``tokens``.

    Raises:
        ValueError: if a size is not positive.

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
    ) -> None:
        super().__init__()
        for name, size in (("embed_dim", embed_dim), ("dim", dim), ("num_iters", num_iters)):
            if size < 1:
                raise ValueError(f"{name} must be positive, got {size}")
        self.dim, self.num_iters, self.center = dim, num_iters, center
        self.out_dim = dim * (dim + 1) // 2
        self.proj = create_projection(projection, embed_dim, dim, bias=projection == "linear")
        self.register_buffer("triangle", torch.ones(dim, dim, dtype=torch.bool).triu().flatten().nonzero()[:, 0], False)

    @classmethod
    def from_config(cls, config: HeadConfig) -> Self:
        """Build the pooling that a head configuration describes: ``q_dim`` is the width d."""
        return cls(config.embed_dim, config.q_dim, config.gcp_iters, config.center, config.projection)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = self.proj(tokens, padding_mask).unsqueeze(1)  # (B, 1, N, d)
        root = matrix_square_root(cross_covariance(x, x, padding_mask, self.center)[:, 0], self.num_iters)
        return root.flatten(1).index_select(1, self.get_buffer("triangle")).to(tokens.dtype)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_iters={self.num_iters}, center={self.center!r}"


class GlobalAveragePool(nn.Module):
    """Mean of the valid word tokens; 0 for a row without any.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, D), in the dtype of ``tokens``.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.out_dim = embed_dim

    @classmethod
    def from_config(cls, config: HeadConfig) -> Self:
        """Build the pooling that a head configuration describes."""
        return cls(config.embed_dim)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        if padding_mask is None:
            total, count = tokens.sum(dim=1, dtype=dtype), tokens.new_tensor(max(tokens.shape[1], 1), dtype=dtype)
        else:
            total = tokens.masked_fill(padding_mask.unsqueeze(-1), 0.0).sum(dim=1, dtype=dtype)
            count = valid_counts(padding_mask).to(dtype).unsqueeze(-1)
        return (total / count).to(tokens.dtype)

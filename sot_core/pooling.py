"""Poolings: word tokens to one vector; :mod:`sot_core.factory` lists them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from sot_core.covariance import CENTERS, center_features, cross_covariance, valid_counts
from sot_core.projection import LinearProjection, clear_padding, create_projection
from sot_core.runtime import at_least_float32
from sot_core.square_root import matrix_square_root
from sot_core.token_chunks import CovarianceSpec, split_heads
from sot_core.token_covariance import token_covariance

if TYPE_CHECKING:
    from sot_core.config import HeadConfig

__all__ = ["GlobalAveragePool", "GlobalCovariancePool", "MultiheadCrossCovariancePool", "Pooling"]


class Pooling(nn.Module):
    """Base of the poolings.

    Attributes:
        out_dim: Width P of the pooled vector.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, P), in the dtype of ``tokens``; 0 for a
        sample without valid tokens.
    """

    out_dim: int

    @classmethod
    def from_config(cls, config: HeadConfig) -> Self:
        """Build the pooling that a head configuration describes."""
        raise NotImplementedError

    def split(self, tokens: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The class token at index 0 and the pooled rest.

        Shape:
            tokens (B, 1 + N, D), padding_mask (B, 1 + N) -> (B, D) and (B, P).
        """
        cls, words = tokens.tensor_split([1], dim=1)
        return cls[:, 0], self(words, None if padding_mask is None else padding_mask[:, 1:])


class MultiheadCrossCovariancePool(Pooling):
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
        recompute: Project again in the backward pass instead of keeping the projection.

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
        recompute: bool = False,
    ) -> None:
        super().__init__()
        k_dim = q_dim if k_dim is None else k_dim
        _check_sizes(embed_dim=embed_dim, num_heads=num_heads, q_dim=q_dim, k_dim=k_dim)
        _check_center(center)
        self.num_heads, self.q_dim, self.k_dim, self.center = num_heads, q_dim, k_dim, center
        self.recompute = recompute
        self.out_dim = num_heads * q_dim * k_dim
        self.proj = create_projection(projection, embed_dim, num_heads * (q_dim + k_dim), bias=proj_bias)
        self.norm = nn.Identity() if norm is None else norm

    @classmethod
    def from_config(cls, config: HeadConfig) -> Self:
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
            recompute=config.recompute,
        )

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if self._steps_are_plain(self.proj):
            return self._pool(tokens, padding_mask, num_prefix=0)[1]
        x, y = split_heads(self.proj(tokens, padding_mask), self.num_heads, self.q_dim)
        matrix = cross_covariance(x.transpose(1, 2), y.transpose(1, 2), padding_mask, self.center)
        return self._normalize(matrix, tokens.dtype)

    def split(self, tokens: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if not self._steps_are_plain(self, self.proj):
            return super().split(tokens, padding_mask)
        prefix, pooled = self._pool(tokens, padding_mask, num_prefix=1)
        return prefix[:, 0], pooled

    def _steps_are_plain(self, *modules: nn.Module) -> bool:
        """Whether `token_covariance` may stand for the calls of ``modules``: no one hooks or replaces them."""
        if type(self.proj) is not LinearProjection or type(self.proj.weight) is not nn.Parameter:
            return False
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return not any(getattr(module, name) for module in modules for name in hooks)

    def _pool(self, tokens: Tensor, padding_mask: Tensor | None, num_prefix: int) -> tuple[Tensor, Tensor]:
        spec = CovarianceSpec(self.num_heads, self.q_dim, self.k_dim, self.center, num_prefix, self.recompute)
        weight, bias = self.proj.get_parameter("weight"), getattr(self.proj, "bias", None)
        prefix, matrix = token_covariance(tokens, weight, bias, padding_mask, spec)
        return prefix, self._normalize(matrix, tokens.dtype)

    def _normalize(self, matrix: Tensor, dtype: torch.dtype) -> Tensor:
        normalized: Tensor = self.norm(matrix)  # (B, H, q, k)
        return normalized.flatten(1).to(dtype)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, q_dim={self.q_dim}, k_dim={self.k_dim}, center={self.center!r}"


class GlobalCovariancePool(Pooling):
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
        ValueError: if a size is not positive or a name unknown.

    Reference:
        arXiv:1712.01034. The covariance is over the n valid tokens; the published SoT code divides by the channel
        count d, so that its output is this one times ``sqrt(n / d)``.
    """

    triangle: Tensor

    def __init__(
        self,
        embed_dim: int,
        dim: int,
        num_iters: int = 5,
        center: str | None = "token",
        projection: str = "linear",
    ) -> None:
        super().__init__()
        _check_sizes(embed_dim=embed_dim, dim=dim, num_iters=num_iters)
        _check_center(center)
        self.dim, self.num_iters, self.center = dim, num_iters, center
        self.out_dim = dim * (dim + 1) // 2
        self.proj = create_projection(projection, embed_dim, dim, bias=projection == "linear")
        rows, columns = torch.triu_indices(dim, dim)
        self.register_buffer("triangle", rows * dim + columns, False)

    @classmethod
    def from_config(cls, config: HeadConfig) -> Self:
        return cls(config.embed_dim, config.q_dim, config.gcp_iters, config.center, config.projection)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = self.proj(tokens, padding_mask).unsqueeze(1)  # (B, 1, N, d)
        x = center_features(x, padding_mask, self.center)  # both factors: rounding keeps the matrix semi-definite
        covariance = cross_covariance(x, x, padding_mask, center=None)[:, 0]
        root = matrix_square_root(covariance, self.num_iters)
        return root.flatten(1).index_select(1, self.triangle).to(tokens.dtype)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_iters={self.num_iters}, center={self.center!r}"


class GlobalAveragePool(Pooling):
    """Mean of the valid word tokens.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, D), in the dtype of ``tokens``.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.out_dim = embed_dim

    @classmethod
    def from_config(cls, config: HeadConfig) -> Self:
        return cls(config.embed_dim)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        total = clear_padding(tokens, padding_mask).sum(dim=1, dtype=at_least_float32(tokens.dtype))
        if padding_mask is None:
            return (total / max(tokens.shape[1], 1)).to(tokens.dtype)
        return (total / valid_counts(padding_mask).unsqueeze(-1)).to(tokens.dtype)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be positive, got {size}")


def _check_center(center: str | None) -> None:
    if center not in CENTERS:
        raise ValueError(f"Unknown center {center!r}, expected one of {list(CENTERS)}")

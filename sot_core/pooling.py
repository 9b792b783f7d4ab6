"""What all poolings have in common, and MGCrP: word tokens to one vector; :mod:`sot_core.build` lists them by name."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn

from sot_core.math.covariance import CENTERS, covary
from sot_core.math.eager import has_hooks
from sot_core.math.token_projection import project_tokens
from sot_core.norms.features import create_head_norm
from sot_core.projection import LinearProjection, TwoLayerProjection, create_projection

__all__ = ["MultiheadCrossCovariancePool", "Pooling", "SecondOrderPooling", "check_center", "check_sizes"]


class Pooling(nn.Module):
    """Base of the poolings.

    Attributes:
        out_dim: Width P of the pooled vector.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, P), in the dtype of ``tokens``; 0 for a
        sample without valid tokens.
    """

    out_dim: int

    def split(self, tokens: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The class token at index 0 and the pooled rest.

        Shape:
            tokens (B, 1 + N, D), padding_mask (B, 1 + N) -> (B, D) and (B, P).
        """
        cls, words = torch.split(tokens, [1, tokens.shape[1] - 1], dim=1)
        return cls[:, 0], self(words, _without_prefix(padding_mask, 1))


class SecondOrderPooling(Pooling):
    """Base of the poolings that project the tokens and pool products of the projected features.

    Attributes:
        proj: The projection, see `sot_core.projection`.
    """

    proj: nn.Module

    def pool(self, projected: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Pool projected tokens that are 0 at padding.

        Shape:
            projected (B, N, features), padding_mask (B, N) -> (B, P).
        """
        raise NotImplementedError

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if _is_plain(self.proj):
            _, pooled = self._project_and_pool(self.proj, tokens, padding_mask, num_prefix=0)
        else:
            pooled = self.pool(self.proj(tokens, padding_mask), padding_mask)
        return pooled.to(tokens.dtype)

    def split(self, tokens: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if not _is_plain(self.proj) or has_hooks(self):
            return super().split(tokens, padding_mask)
        prefix, pooled = self._project_and_pool(self.proj, tokens, padding_mask, num_prefix=1)
        return prefix[:, 0], pooled.to(tokens.dtype)

    def _project_and_pool(
        self, proj: LinearProjection, tokens: Tensor, padding_mask: Tensor | None, num_prefix: int
    ) -> tuple[Tensor, Tensor]:
        """The prefix tokens and the pooled rest, for a projection that nothing hooks.

        Shape:
            tokens (B, num_prefix + N, D), padding_mask (B, num_prefix + N) -> (B, num_prefix, D) and (B, P).
        """
        prefix, projected = project_tokens(tokens, *proj.cast_parameters(tokens), padding_mask, num_prefix)
        return prefix, self.pool(projected, _without_prefix(padding_mask, num_prefix))


class MultiheadCrossCovariancePool(SecondOrderPooling):
    r"""Pool word tokens into one normalised cross-covariance matrix per head (MGCrP).

    Head h projects the tokens twice, ``X = Z W_h`` and ``Y = Z R_h``, and takes ``norm(X^T Y / n)``, see
    :func:`~sot_core.math.covariance.cross_covariance`. The heads' matrices are flattened row by row and concatenated.

    Args:
        embed_dim: Token width D (> 0).
        num_heads: Heads H (> 0).
        q_dim: Width q of the first projection (> 0), the rows of the matrices.
        k_dim: Width k of the second projection (> 0), the columns; None: as ``q_dim``.
        norm: Module mapping (B, H, q, k) to the same shape; None: none.
        center: ``"token"``, ``"sample"`` or None.
        projection: ``"linear"`` or ``"batch_norm_relu"`` (the So-ViT head: linear, BatchNorm, ReLU).
        proj_bias: Whether the linear projection has a bias; without effect on a ``center="token"`` covariance.
        head_norm: Normalisation of each token's features of each head before the covariance: ``"layer_norm"`` (modules
            ``x_norm`` and ``y_norm``, each with one weight and bias for all heads) or ``"none"``.
        two_layers: Whether tokens hold two layers of an encoder side by side: X is projected from the first, Y from the
            second. Needs ``projection="linear"``.

    Shape:
        tokens (B, N, D), with ``two_layers`` (B, N, 2 D), padding_mask (B, N) bool, True = ignore -> (B, H * q * k), in
        the dtype of ``tokens``.
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
        head_norm: str = "none",
        two_layers: bool = False,
    ) -> None:
        super().__init__()
        k_dim = q_dim if k_dim is None else k_dim
        check_sizes(embed_dim=embed_dim, num_heads=num_heads, q_dim=q_dim, k_dim=k_dim)
        check_center(center)
        self.num_heads, self.q_dim, self.k_dim, self.center = num_heads, q_dim, k_dim, center
        self.out_dim = num_heads * q_dim * k_dim
        if two_layers and projection != "linear":
            raise ValueError(f"two_layers needs projection='linear', got {projection!r}")
        self.proj = (
            TwoLayerProjection(embed_dim, num_heads * q_dim, num_heads * k_dim, bias=proj_bias)
            if two_layers
            else create_projection(projection, embed_dim, num_heads * (q_dim + k_dim), bias=proj_bias)
        )
        self.norm = nn.Identity() if norm is None else norm
        self.x_norm, self.y_norm = (create_head_norm(head_norm, width) for width in (q_dim, k_dim))

    def pool(self, projected: Tensor, padding_mask: Tensor | None) -> Tensor:
        x, y = torch.split(projected, [self.num_heads * self.q_dim, self.num_heads * self.k_dim], dim=-1)
        if self.x_norm is not None and self.y_norm is not None:
            x, y = self.x_norm(x, padding_mask), self.y_norm(y, padding_mask)
        normalized: Tensor = self.norm(covary(x, y, self.num_heads, padding_mask, self.center))
        return normalized.flatten(1)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, q_dim={self.q_dim}, k_dim={self.k_dim}, center={self.center!r}"


def _without_prefix(padding_mask: Tensor | None, num_prefix: int) -> Tensor | None:
    return None if padding_mask is None else padding_mask[:, num_prefix:]


def _is_plain(proj: nn.Module) -> TypeGuard[LinearProjection]:
    """Whether `project_tokens` may stand for the call of the projection: no one hooks or replaces it."""
    return type(proj) is LinearProjection and type(proj.weight) is nn.Parameter and not has_hooks(proj)


def check_sizes(**sizes: int) -> None:
    """Raise ValueError for a size that is not positive, by its name."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be positive, got {size}")


def check_center(center: str | None) -> None:
    """Raise ValueError for a centring that does not exist."""
    if center not in CENTERS:
        raise ValueError(f"Unknown center {center!r}, expected one of {list(CENTERS)}")

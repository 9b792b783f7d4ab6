"""Poolings by attention of learned queries to the word tokens; weights and averages are of at least float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sot_core.math.padding import clear_padding, clear_without_tokens, fill_empty
from sot_core.math.precision import at_least_float32, no_autocast
from sot_core.pooling import Pooling, check_sizes

__all__ = ["AttentionPool", "EfficientProbingPool", "attention_weights"]

QUERY_DEVIATION = 0.02  # of the queries at the start


class AttentionPool(Pooling):
    """Multi-head attention of one learned query to the word tokens (MAP, attentive probing).

    Projections of query, keys, values and output, each with a bias; an MLP after it is optional, with layer
    normalisation before it, four times the width, GELU, and a residual connection.

    Args:
        embed_dim: Token width D (> 0).
        num_heads: Heads (> 0), a divisor of D.
        mlp: Whether the MLP follows.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, D), in the dtype of ``tokens``.

    Raises:
        ValueError: if a size is not positive or the heads do not divide D.

    Reference:
        arXiv:1810.00825, section 3.2 (pooling by multi-head attention, with one seed); arXiv:2106.04560, which names
        it MAP for the ViT. V-JEPA (arXiv:2404.08471) and AIM (arXiv:2401.08541) probe frozen encoders with it.
    """

    def __init__(self, embed_dim: int, num_heads: int, mlp: bool = False) -> None:
        super().__init__()
        check_sizes(embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"num_heads must divide embed_dim, got {num_heads} and {embed_dim}")
        self.num_heads, self.out_dim = num_heads, embed_dim
        self.query = nn.Parameter(torch.empty(embed_dim))
        self.query_proj, self.key_proj, self.value_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim) for _ in range(4)
        )
        self.mlp = _create_mlp(embed_dim) if mlp else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the query; the layers draw their own parameters."""
        nn.init.normal_(self.query, std=QUERY_DEVIATION)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        filled, padding_mask = fill_empty(tokens, padding_mask)
        averages = average_by_attention(self.scores, clear_padding(filled, padding_mask), padding_mask)
        with no_autocast(tokens):
            weight = self.value_proj.weight.to(averages.dtype).view(self.num_heads, -1, self.out_dim)
            values = torch.einsum("bhd,hwd->bhw", averages, weight).flatten(1) + self.value_proj.bias.to(weight.dtype)
        pooled: Tensor = self.out_proj(values.to(tokens.dtype))
        if self.mlp is not None:
            pooled = pooled + self.mlp(pooled)
        return clear_without_tokens(pooled.to(tokens.dtype), padding_mask)

    def scores(self, tokens: Tensor) -> Tensor:
        """Scaled products of the query and the keys of each head.

        The query is applied to the key projection first, which spares the projection of all tokens.

        Shape:
            tokens (B, N, D) -> (B, H, N), in the dtype of the tokens.
        """
        dtype = tokens.dtype
        query = F.linear(self.query.to(dtype), self.query_proj.weight.to(dtype), self.query_proj.bias.to(dtype))
        query = query.view(self.num_heads, 1, -1) * (self.out_dim // self.num_heads) ** -0.5
        weight = self.key_proj.weight.to(dtype).view(self.num_heads, -1, self.out_dim)
        bias = self.key_proj.bias.to(dtype).view(self.num_heads, -1, 1)
        scores: Tensor = tokens @ (query @ weight).squeeze(1).mT + (query @ bias).flatten()
        return scores.mT

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}"


class EfficientProbingPool(Pooling):
    r"""Averages of the word tokens by several learned queries, each for a part of the channels (Efficient Probing).

    With the softmax over the tokens :math:`a_j = \mathrm{softmax}(Z u_j / \sqrt D)` of query j, the j-th of M equal
    parts of the result is :math:`V_j Z^T a_j`, where :math:`V_j` are the rows of V that belong to the part. The tokens
    are averaged before V is applied, which gives the same and costs less.

    Args:
        embed_dim: Token width D (> 0).
        num_queries: Queries M (> 0), a divisor of D.

    Attributes:
        queries: u_1 ... u_M, (M, D).
        values: V_1 ... V_M, (M, D / M, D).

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, D), in the dtype of ``tokens``.

    Raises:
        ValueError: if a size is not positive or the queries do not divide D.

    Reference:
        arXiv:2506.10178.
    """

    def __init__(self, embed_dim: int, num_queries: int = 32) -> None:
        super().__init__()
        check_sizes(embed_dim=embed_dim, num_queries=num_queries)
        if embed_dim % num_queries:
            raise ValueError(f"num_queries must divide embed_dim, got {num_queries} and {embed_dim}")
        self.num_queries, self.out_dim = num_queries, embed_dim
        self.queries = nn.Parameter(torch.empty(num_queries, embed_dim))
        self.values = nn.Parameter(torch.empty(num_queries, embed_dim // num_queries, embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the queries, and V as a linear layer's weight."""
        nn.init.normal_(self.queries, std=QUERY_DEVIATION)
        nn.init.uniform_(self.values, -(self.out_dim**-0.5), self.out_dim**-0.5)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        filled, padding_mask = fill_empty(tokens, padding_mask)
        averages = average_by_attention(self.scores, clear_padding(filled, padding_mask), padding_mask)
        with no_autocast(tokens):
            parts = averages.transpose(0, 1) @ self.values.to(averages.dtype).mT  # (M, B, D / M)
        return clear_without_tokens(parts.transpose(0, 1).flatten(1), padding_mask).to(tokens.dtype)

    def scores(self, tokens: Tensor) -> Tensor:
        """Scaled products of queries and tokens.

        Shape:
            tokens (B, N, D) -> (B, M, N), in the dtype of the tokens.
        """
        scores: Tensor = tokens @ (self.queries.to(tokens.dtype) * self.out_dim**-0.5).mT
        return scores.mT

    def extra_repr(self) -> str:
        return f"num_queries={self.num_queries}"


def average_by_attention(score: Callable[[Tensor], Tensor], tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Averages of the tokens by :func:`attention_weights`.

    Shape:
        tokens (B, N, D), 0 at padding, padding_mask (B, N) bool, True = ignore -> (B, H, D), of at least float32.
    """
    with no_autocast(tokens):
        tokens = tokens.to(at_least_float32(tokens.dtype))
        averages: Tensor = attention_weights(score(tokens), padding_mask) @ tokens
    return averages


def attention_weights(scores: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Softmax over the valid tokens, 0 at padding; without a valid token over all, so that it is finite.

    Shape:
        scores (B, H, N), padding_mask (B, N) bool, True = ignore -> (B, H, N).
    """
    if padding_mask is not None:
        ignored = padding_mask & ~padding_mask.all(dim=1, keepdim=True)
        scores = scores.masked_fill(ignored.unsqueeze(1), float("-inf"))
    return scores.softmax(dim=-1)


def _create_mlp(width: int) -> nn.Sequential:
    layers = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    return nn.Sequential(*layers)

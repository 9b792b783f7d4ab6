"""Exact contributions of the tokens to the logits of a head.

The logits are ``W p``, with the classifier weights W and the pooled vector p. If p is linear in the tokens for fixed
scalars of the sample (attention weights, positions of maxima), the contribution of a token is its term of the sum;
second-order poolings are in `sot_core.covariance_split`. :data:`SPLITS` has the rule of each pooling:
(pooling, tokens (B, N, D), padding_mask (B, N), weight (K, P)) -> (B, K, N), N > 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from sot_core.attentive_pooling import AttentionPool, EfficientProbingPool, attention_weights
from sot_core.covariance_pooling import DropCovPool, GlobalCovariancePool, MomentPool
from sot_core.covariance_split import split_covariance, split_cross_covariance, split_moments
from sot_core.first_order_pooling import GeneralizedMeanPool, GlobalAveragePool, MaxPool, MeanDeviationPool
from sot_core.math.padding import clear_padding, clear_without_tokens, count_valid
from sot_core.math.precision import at_least_float32
from sot_core.math.statistics import token_deviation, token_mean
from sot_core.pooling import MultiheadCrossCovariancePool, Pooling

__all__ = ["SPLITS", "split_into_tokens"]

Split = Callable[[Any, Tensor, Tensor | None, Tensor], Tensor]


def split_into_tokens(
    pool: Pooling, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor, norm: nn.BatchNorm1d | None
) -> tuple[Tensor, Tensor]:
    """Split the logits of linear classifiers on the pooled tokens into contributions of the tokens.

    Args:
        pool: The pooling.
        tokens: The tokens it pools.
        padding_mask: True at tokens to ignore.
        weight: W of the classifiers, without their bias.
        norm: BatchNorm between pooling and classifiers, in evaluation mode.

    Shape:
        tokens (B, N, D), padding_mask (B, N), weight (K, P) -> contributions (B, K, N), 0 at padding, and a constant
        (B, K) independent of the tokens: the shift of the BatchNorm and the output bias of an attention.

    Raises:
        ValueError: if the pooling, or its normalisation, has no exact split.
    """
    if type(pool) not in SPLITS:
        raise ValueError(f"{type(pool).__name__} has no exact split into tokens")
    weight = weight.to(at_least_float32(torch.promote_types(tokens.dtype, weight.dtype)))
    constant = weight.new_zeros(len(tokens), len(weight))
    if norm is not None:
        mean, variance = (norm.get_buffer(name).to(weight.dtype) for name in ("running_mean", "running_var"))
        weight = weight * (variance + norm.eps).rsqrt()
        constant = constant - weight @ mean
    if tokens.shape[1] == 0:
        return weight.new_zeros(len(tokens), len(weight), 0), constant
    if isinstance(pool, AttentionPool):
        constant = constant + _attention_constant(pool, len(tokens), padding_mask, weight)
    return SPLITS[type(pool)](pool, tokens, padding_mask, weight), constant


def _split_mean(pool: GlobalAveragePool, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor) -> Tensor:
    return _apply(weight, _cleared(tokens, padding_mask) / _count(tokens, padding_mask))


def _split_mean_deviation(
    pool: MeanDeviationPool, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor
) -> Tensor:
    for_mean, for_deviation = weight.chunk(2, dim=-1)
    values = _cleared(tokens, padding_mask)
    mean = token_mean(values, padding_mask)
    deviation = token_deviation(values, padding_mask, mean).unsqueeze(1)
    scale = torch.where(deviation > 0.0, deviation, 1.0)  # (z / sd) ** 2 sums to n: no square overflows
    deviations = clear_padding((values - mean.unsqueeze(1)) / scale, padding_mask)
    parts = _apply(for_mean, values) + _apply(for_deviation, deviations.square() * deviation)
    return parts / _count(tokens, padding_mask)


def _split_max(pool: MaxPool, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor) -> Tensor:
    values = _cleared(tokens, padding_mask)
    pooled = pool(tokens, padding_mask).to(values.dtype).unsqueeze(1)
    is_largest = clear_padding((values == pooled).to(values.dtype), padding_mask)
    share = is_largest / is_largest.sum(dim=1, keepdim=True).clamp_min(1.0)  # ties share
    return _apply(weight, share * pooled)


def _split_generalized_mean(
    pool: GeneralizedMeanPool, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor
) -> Tensor:
    logs, _ = pool.log_powers(tokens, padding_mask)
    share = clear_padding(logs.softmax(dim=1), padding_mask)
    return _apply(weight, share * pool(tokens, padding_mask).to(share.dtype).unsqueeze(1))


def _split_attention(pool: AttentionPool, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor) -> Tensor:
    if pool.mlp is not None:
        raise ValueError("the MLP after the attention does not split into tokens: attention_mlp=True")
    values = _cleared(tokens, padding_mask)
    out = (weight @ pool.out_proj.weight.to(weight.dtype)).view(len(weight), pool.num_heads, -1).transpose(0, 1)
    value_weight = pool.value_proj.weight.to(weight.dtype).view(pool.num_heads, -1, pool.out_dim)
    offsets = out @ pool.value_proj.bias.to(weight.dtype).view(pool.num_heads, -1, 1)  # (H, K, 1)
    return _split_averages(pool.scores(values), out @ value_weight, offsets, values, padding_mask)


def _attention_constant(pool: AttentionPool, batch_size: int, padding_mask: Tensor | None, weight: Tensor) -> Tensor:
    """Contribution of the output bias, for samples with a valid token: (B, K)."""
    constant = (weight @ pool.out_proj.bias.to(weight.dtype)).expand(batch_size, -1)
    return clear_without_tokens(constant, padding_mask)


def _split_efficient(pool: EfficientProbingPool, tokens: Tensor, padding_mask: Tensor | None, weight: Tensor) -> Tensor:
    values = _cleared(tokens, padding_mask)
    weights = weight.reshape(len(weight), pool.num_queries, -1).transpose(0, 1)
    directions = weights @ pool.values.to(weight.dtype)
    return _split_averages(pool.scores(values), directions, directions.new_zeros(()), values, padding_mask)


def _split_averages(
    scores: Tensor, directions: Tensor, offsets: Tensor, values: Tensor, padding_mask: Tensor | None
) -> Tensor:
    """Contributions to sums over the heads of linear functions of averages by attention.

    Shape:
        scores (B, H, N), directions (H, K, D), offsets (H, K, 1) or a scalar, values (B, N, D) -> (B, K, N).
    """
    shares = attention_weights(scores, padding_mask)
    if padding_mask is not None:
        shares = shares.masked_fill(padding_mask.unsqueeze(1), 0.0)
    terms = zip(directions, offsets.expand(*directions.shape[:2], 1), torch.split(shares, 1, dim=1), strict=True)
    parts: Tensor = reduce(
        torch.add, ((_apply(direction, values) + offset) * share for direction, offset, share in terms)
    )
    return parts


SPLITS: dict[type[Pooling], Split] = {
    MultiheadCrossCovariancePool: split_cross_covariance,
    GlobalCovariancePool: split_covariance,
    DropCovPool: split_covariance,
    MomentPool: split_moments,
    GlobalAveragePool: _split_mean,
    MeanDeviationPool: _split_mean_deviation,
    MaxPool: _split_max,
    GeneralizedMeanPool: _split_generalized_mean,
    AttentionPool: _split_attention,
    EfficientProbingPool: _split_efficient,
}


def _apply(weight: Tensor, values: Tensor) -> Tensor:
    """Apply weights (K, D) to values (B, N, D): (B, K, N)."""
    applied: Tensor = weight @ values.mT
    return applied


def _cleared(tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
    return clear_padding(tokens, padding_mask).to(at_least_float32(tokens.dtype))


def _count(values: Tensor, padding_mask: Tensor | None) -> Tensor | int:
    """Number of valid tokens of each sample, at least 1: (B, 1, 1), or an int without padding."""
    if padding_mask is None:
        return values.shape[1]
    return count_valid(padding_mask).to(values.dtype).view(-1, 1, 1)

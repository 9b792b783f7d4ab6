"""Padding: masked tokens are ignored; their values, NaN included, affect neither output nor gradient.

A padding mask (B, N) is True at the tokens to ignore.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sot_core.math.eager import can_read_values

__all__ = ["clear_padding", "clear_without_tokens", "count_valid", "fill_empty", "find_valid", "pack_valid"]

PACKED_SHARE = 0.2  # of padding from which leaving it out is faster than computing on it


def clear_padding(tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Zero at the tokens to ignore.

    Shape:
        tokens (B, N, D), padding_mask (B, N) -> (B, N, D).
    """
    return tokens if padding_mask is None else tokens.masked_fill(padding_mask.unsqueeze(-1), 0.0)


def clear_without_tokens(pooled: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Zero for the samples without a valid token.

    Shape:
        pooled (B, P), padding_mask (B, N) -> (B, P).
    """
    return pooled if padding_mask is None else pooled.masked_fill(padding_mask.all(dim=1, keepdim=True), 0.0)


def fill_empty(tokens: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Give samples of length 0 one padded token, so that a maximum or a softmax over the tokens exists.

    Shape:
        tokens (B, N, D), padding_mask (B, N) -> the same, or (B, 1, D) and (B, 1) where N is 0.
    """
    if tokens.shape[1] > 0:
        return tokens, padding_mask
    return F.pad(tokens, (0, 0, 0, 1)), torch.ones(tokens.shape[0], 1, dtype=torch.bool, device=tokens.device)


def count_valid(padding_mask: Tensor) -> Tensor:
    """Count the valid tokens of each sample, at least 1 so that a row without any divides safely.

    Shape:
        padding_mask (B, N) -> (B,) int64.
    """
    return (~padding_mask).sum(dim=-1).clamp_min(1)


def pack_valid(padding_mask: Tensor) -> Tensor | None:
    """:func:`find_valid`, or None where padding is better computed on as well.

    That is where there is little of it, and where the number of tokens must not depend on the mask's values: on a GPU,
    which would have to wait for them, and while the operations are recorded.

    Shape:
        padding_mask (B, N) -> (number of valid tokens,) int64.
    """
    if not can_read_values(padding_mask):
        return None
    if padding_mask.sum().item() < PACKED_SHARE * padding_mask.numel():
        return None
    return find_valid(padding_mask)


def find_valid(padding_mask: Tensor) -> Tensor:
    """Places of the valid tokens in the flattened batch.

    Shape:
        padding_mask (B, N) -> (number of valid tokens,) int64.
    """
    return (~padding_mask).flatten().nonzero().squeeze(1)

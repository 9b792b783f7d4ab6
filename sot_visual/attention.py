"""Relevance of tokens through the attention of a transformer, for any backbone with softmax self-attention.

Reference: Chefer, Gur and Wolf, arXiv:2103.15679, equations 5 and 6.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sot_base.errors import UsageError
from sot_visual.model_view import Inputs, ModelView, picked

__all__ = ["attention_relevance", "record_attention"]


@contextlib.contextmanager
def record_attention() -> Iterator[list[Tensor]]:
    """Yield a list that collects the weights (B, H, T, T) of every self-attention in the block, in order.

    The block replaces torch's scaled dot-product attention, which timm, transformers and fairseq all call, by an
    unfused one whose weights are tensors with gradients.
    """
    found: list[Tensor] = []
    original = F.scaled_dot_product_attention

    def in_steps(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        if enable_gqa:
            key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], dim=-3) for t in (key, value))
        scores = query @ key.mT * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
        weights = scores.softmax(dim=-1)
        if query.dim() == 4 and query.shape[-2] == key.shape[-2]:
            found.append(weights)
        output: Tensor = weights.nan_to_num() @ value
        return output

    F.scaled_dot_product_attention = in_steps
    try:
        yield found
    finally:
        F.scaled_dot_product_attention = original


def attention_relevance(view: ModelView, inputs: Inputs, target: Tensor, part: str) -> Tensor:
    """Relevance of each token of the backbone's sequence to a logit, propagated through all attention layers.

    The relevance of the head's tokens starts as the positive part of gradient times activation (the magnitude, if no
    token is positive), normalised to the sum 1; a head that reads the class token alone starts with 1 there, as in the
    paper. From the last block to the first, it is passed on to the attended tokens by the positive part of gradient
    times attention, averaged over the heads.

    Args:
        view: The model.
        inputs: A batch.
        target: Class of each sample (B,).
        part: Part of the logits.

    Shape:
        -> (B, T), non-negative.

    Raises:
        UsageError: for a backbone without self-attention over all tokens, such as Swin or a convolutional network.
    """
    with torch.enable_grad(), record_attention() as maps:
        tokens, mask = view.tokens(*inputs)
        maps = list(maps)  # before the head, which may have an attention of its own
        logits = picked(view.part_logits(tokens, mask, part), target).sum()
    size = view.to_sequence(tokens.detach()[..., 0], mask).shape
    if not maps or any(weights.shape[0] != size[0] or weights.shape[-1] != size[1] for weights in maps):
        raise UsageError(
            "the backbone has no self-attention over all tokens: method relevance; choose another --method"
        )
    gradient, *gradients = torch.autograd.grad(logits, [tokens, *maps], allow_unused=True)
    relevance = view.to_sequence(_start(gradient * tokens.detach(), mask), mask)
    for weights, slope in zip(reversed(maps), reversed(gradients), strict=True):
        if slope is not None:
            passed = (weights.detach() * slope).nan_to_num().clamp_min(0.0).mean(dim=1)
            relevance = relevance + (relevance.unsqueeze(1) @ passed)[:, 0]
    return relevance.detach()


def _start(products: Tensor, mask: Tensor | None) -> Tensor:
    """Relevance of the head's tokens (B, T), from gradient times activation (B, T, D)."""
    start = products.sum(dim=-1)
    if mask is not None:
        start = start.masked_fill(mask, 0.0)
    start = torch.where((start > 0.0).any(dim=1, keepdim=True), start.clamp_min(0.0), start.abs())
    return start / start.sum(dim=1, keepdim=True).clamp_min(torch.finfo(start.dtype).tiny)

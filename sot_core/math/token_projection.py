"""Linear projection of tokens that leaves prefix tokens and padding out without copying the tokens.

Which form runs: in eager mode one with a derivative of its own; where the operations are recorded, torch's linear layer
on tokens whose padding is cleared. Autograd on the latter writes and reads arrays of the tokens' size several times: to
cut the prefix off, to clear the padding, and to put the gradients together again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sot_core.math.eager import can_read_values, is_recorded
from sot_core.math.padding import clear_padding, find_valid, pack_valid
from sot_core.math.precision import at_least_float32, no_autocast

__all__ = ["project_tokens"]

CPU_PART_BYTES = 4 * 2**20  # of tokens
GPU_PART_BYTES = 256 * 2**20


def project_tokens(
    tokens: Tensor, weight: Tensor, bias: Tensor | None, padding_mask: Tensor | None, num_prefix: int = 0
) -> tuple[Tensor, Tensor]:
    """Project the word tokens, ``Z W^T + b``, in the dtype of the weight.

    Args:
        tokens: Prefix tokens, then word tokens.
        weight: W.
        bias: b, or None.
        padding_mask: True at tokens to ignore, whatever they hold.
        num_prefix: Tokens at the start that are not word tokens: 1 for a class token.

    Shape:
        tokens (B, T, D), weight (P, D), bias (P,), padding_mask (B, T) -> prefix tokens (B, num_prefix, D) and
        projected word tokens (B, T - num_prefix, P), 0 at padding.
    """
    if not is_recorded():
        prefix, projected = _ProjectTokens.apply(tokens, weight, bias, padding_mask, num_prefix)
        return prefix, projected
    projected = F.linear(clear_padding(tokens, padding_mask).to(weight.dtype), weight, bias)
    mask = None if bias is None or padding_mask is None else padding_mask[:, num_prefix:]
    return tokens[:, :num_prefix], clear_padding(projected[:, num_prefix:], mask)


class _ProjectTokens(torch.autograd.Function):
    """Projects all tokens where they lie.

    The projection of prefix tokens is dropped, that of padding becomes 0, and both get a gradient of 0. A gradient of 0
    times finite padding is 0; padding that is not finite shows in the projection and is cleared for the gradient.
    Where a large part is padding, the valid tokens alone are gathered. The gradients are made a few samples at a time,
    which stay in the cache.
    """

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, num_prefix: int
    ) -> tuple[Tensor, Tensor]:
        rows = tokens.flatten(0, 1)
        valid = None if mask is None else pack_valid(mask)
        ctx.must_clear = False
        with no_autocast(tokens):
            if valid is not None:
                packed = F.linear(rows.index_select(0, valid).to(weight.dtype), weight, bias)
                projected = packed.new_zeros(len(rows), len(weight)).index_copy_(0, valid, packed)
            else:
                projected = F.linear(rows.to(weight.dtype), weight, bias)
            if mask is not None and valid is None:
                is_finite = can_read_values(projected) and projected.sum().isfinite().item()
                ctx.must_clear = ctx.needs_input_grad[1] and not is_finite
                projected.masked_fill_(mask.reshape(-1, 1), 0.0)
        ctx.save_for_backward(tokens, weight, mask)
        ctx.num_prefix, ctx.packs = num_prefix, valid is not None
        projected = projected.view(*tokens.shape[:2], len(weight))
        return tokens[:, :num_prefix].clone(), projected[:, num_prefix:]

    @staticmethod
    def backward(ctx: Any, grad_prefix: Tensor, grad_projected: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight, mask = ctx.saved_tensors
        dtype = at_least_float32(weight.dtype)
        need_tokens, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_tokens = tokens.new_empty(tokens.shape) if need_tokens else None
        grad_weight = torch.zeros_like(weight, dtype=dtype) if need_weight else None
        grad_bias = weight.new_zeros(len(weight), dtype=dtype) if need_bias else None
        with no_autocast(tokens):
            for part in _parts(tokens):
                part_mask = None if mask is None else mask[part]
                grad = F.pad(grad_projected[part], (0, 0, ctx.num_prefix, 0)).flatten(0, 1)  # a new array
                if part_mask is not None:
                    grad.masked_fill_(part_mask.reshape(-1, 1), 0.0)
                if grad_tokens is not None:
                    _set_product(grad_tokens[part].view(-1, tokens.shape[-1]), grad, weight)
                if grad_bias is not None:
                    grad_bias += grad.sum(dim=0)
                if grad_weight is not None:
                    rows = clear_padding(tokens[part], part_mask if ctx.must_clear else None).flatten(0, 1)
                    if ctx.packs and part_mask is not None:
                        valid = find_valid(part_mask)
                        rows, grad = rows.index_select(0, valid), grad.index_select(0, valid)
                    _add_product(grad_weight, grad.mT, rows.to(grad.dtype))
            if grad_tokens is not None:
                grad_tokens[:, : ctx.num_prefix] += grad_prefix
        grad_weight, grad_bias = (None if grad is None else grad.to(weight.dtype) for grad in (grad_weight, grad_bias))
        return grad_tokens, grad_weight, grad_bias, None, None


def _parts(tokens: Tensor) -> Iterator[slice]:
    """Samples whose gradients are made at a time; all, where that derivative will be differentiated."""
    budget = CPU_PART_BYTES if tokens.device.type == "cpu" else GPU_PART_BYTES
    size = len(tokens) if torch.is_grad_enabled() else budget // max(1, tokens[:1].nbytes)
    size = max(1, size)
    return (slice(start, start + size) for start in range(0, len(tokens), size))


def _set_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    if out.dtype == a.dtype and not torch.is_grad_enabled():
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b

"""Tokens to cross-covariance matrices in one step: projection, centring and product, a few samples at a time.

The mathematics of a linear layer followed by :func:`~sot_core.covariance.cross_covariance` without the copies: a chunk
of samples stays in the cache from its tokens to its matrices, BLAS reads each head where it lies in the projection,
and the gradients of all heads are written into one buffer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sot_core.projection import clear_padding
from sot_core.runtime import at_least_float32, autocast_dtype, is_recorded, no_autocast
from sot_core.token_chunks import CovarianceSpec, TokenChunks, count_words, means

__all__ = ["project_and_covary", "token_covariance"]

Grads = tuple[Tensor | None, ...]


def token_covariance(
    tokens: Tensor, weight: Tensor, bias: Tensor | None, padding_mask: Tensor | None, spec: CovarianceSpec
) -> tuple[Tensor, Tensor]:
    """Project tokens and take each head's cross-covariance over the word tokens, with a hand-written gradient.

    Args:
        tokens: Prefix tokens, then word tokens.
        weight: Of the projection: first the q-part head by head, then the k-part.
        bias: Of the projection, or None.
        padding_mask: True at tokens to ignore, whatever they hold.
        spec: Sizes and centring.

    Shape:
        tokens (B, T, D), weight (H * (q + k), D), padding_mask (B, T) -> prefix tokens (B, num_prefix, D) and matrices
        (B, H, q, k). Under autocast the projection is in its dtype; sums and matrices are of float32 at least.
    """
    if is_recorded():
        return project_and_covary(tokens, weight, bias, padding_mask, spec)
    if not torch.is_grad_enabled():
        spec = spec._replace(recompute=True)  # nothing to keep
    prefix, matrix = _TokenCovariance.apply(tokens, weight, bias, padding_mask, spec, autocast_dtype(tokens))
    return prefix, matrix


def project_and_covary(
    tokens: Tensor, weight: Tensor, bias: Tensor | None, padding_mask: Tensor | None, spec: CovarianceSpec
) -> tuple[Tensor, Tensor]:
    """:func:`token_covariance` in torch's own operations, for compilers, exporters and higher derivatives."""
    projected = F.linear(clear_padding(tokens, padding_mask), weight, bias)
    mask = None if padding_mask is None else padding_mask[:, spec.num_prefix :]
    with no_autocast(tokens):
        words = projected[:, spec.num_prefix :].to(at_least_float32(projected.dtype))
        count = count_words(tokens, padding_mask, spec, words.dtype)
        words = clear_padding(words, mask)
        if spec.center is not None:
            words = clear_padding(words - means(words, count, spec), mask)
        widths = [spec.q_dim] * spec.num_heads + [spec.k_dim] * spec.num_heads
        parts = torch.split(words, widths, dim=-1)
        pairs = zip(parts[: spec.num_heads], parts[spec.num_heads :], strict=True)
        matrix = torch.stack([torch.bmm(x.mT, y) for x, y in pairs], dim=1) / count.unsqueeze(-1)
    return tokens[:, : spec.num_prefix], matrix


class _TokenCovariance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        spec: CovarianceSpec,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        keep = any(ctx.needs_input_grad) and not spec.recompute
        with no_autocast(tokens):
            chunks = TokenChunks(tokens, weight, bias, mask, spec, dtype)
            projected = chunks.new_buffer(tokens.shape[0] if keep else chunks.size)
            matrix = tokens.new_empty(tokens.shape[0], *spec[:3], dtype=chunks.sum_dtype)
            for part, chunk in chunks:
                words = chunks.project(chunks.rows(part), part, projected[part if keep else chunk])
                chunks.multiply(words, matrix[part])
            matrix /= chunks.count[..., None]
        ctx.save_for_backward(tokens, weight, bias, mask, projected if keep else None)
        ctx.spec, ctx.dtype = spec, dtype
        return tokens[:, : spec.num_prefix].clone(), matrix

    @staticmethod
    def backward(ctx: Any, grad_prefix: Tensor, grad_matrix: Tensor) -> Grads:
        if torch.is_grad_enabled():  # create_graph=True: this derivative will be differentiated
            return _differentiable_backward(ctx, grad_prefix, grad_matrix)
        tokens, weight, bias, mask, projected = ctx.saved_tensors
        spec, (need_tokens, need_weight, need_bias) = ctx.spec, ctx.needs_input_grad[:3]
        with no_autocast(tokens):
            chunks = TokenChunks(tokens, weight, bias, mask, spec, ctx.dtype)
            grad_matrix = (grad_matrix / chunks.count[..., None]).to(ctx.dtype)
            grad_tokens = tokens.new_empty(tokens.shape) if need_tokens else None
            grad_weight = torch.zeros_like(weight, dtype=chunks.sum_dtype) if need_weight else None
            grad_bias = torch.zeros_like(bias, dtype=chunks.sum_dtype) if need_bias else None
            buffer = chunks.new_buffer(chunks.size) if projected is None else None
            grad_buffer = chunks.new_buffer(chunks.size)
            grad_buffer[:, : spec.num_prefix] = 0.0
            for part, chunk in chunks:
                rows = chunks.rows(part)
                if buffer is None:
                    words = projected[part, spec.num_prefix :]
                else:
                    words = chunks.project(rows, part, buffer[chunk])
                grad = grad_buffer[chunk]
                chunks.differentiate(words, grad_matrix[part], part, grad[:, spec.num_prefix :])
                grad = grad.view(-1, chunks.width)
                if grad_tokens is not None:
                    _set_product(grad_tokens[part].view(-1, tokens.shape[-1]), grad, chunks.weight)
                if grad_weight is not None:
                    _add_product(grad_weight, grad.mT, rows)
                if grad_bias is not None:
                    grad_bias += grad.sum(dim=0)
            if grad_tokens is not None:
                grad_tokens[:, : spec.num_prefix] = grad_prefix
            grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
            grad_bias = None if grad_bias is None else grad_bias.to(weight.dtype)
        return grad_tokens, grad_weight, grad_bias, None, None, None


def _differentiable_backward(ctx: Any, grad_prefix: Tensor, grad_matrix: Tensor) -> Grads:
    tokens, weight, bias, mask, _ = ctx.saved_tensors
    with torch.autocast(tokens.device.type, ctx.dtype, enabled=ctx.dtype != tokens.dtype):
        outputs = project_and_covary(tokens, weight, bias, mask, ctx.spec)
    needed = ctx.needs_input_grad[:3]
    inputs = [value for value, need in zip((tokens, weight, bias), needed, strict=True) if need]
    found = iter(torch.autograd.grad(outputs, inputs, (grad_prefix, grad_matrix), create_graph=True))
    return *(next(found) if need else None for need in needed), None, None, None


def _set_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    if out.dtype == a.dtype:
        out.addmm_(a, b)
    else:
        out += a @ b

"""Projection, centring and products of :mod:`sot_core.token_covariance` for one chunk of samples at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sot_core.covariance import valid_counts
from sot_core.projection import clear_padding
from sot_core.runtime import at_least_float32

__all__ = ["CovarianceSpec", "TokenChunks", "count_words", "means", "split_heads"]

CPU_CHUNK_BYTES = 2**20  # of projected tokens: fits a core's own cache
GPU_CHUNK_BYTES = 32 * 2**20  # few launches
MIXED_BMM = hasattr(torch.ops.aten.bmm, "dtype")  # half-precision factors, float32 product; on GPUs only


class CovarianceSpec(NamedTuple):
    """What :func:`token_covariance` computes.

    Attributes:
        num_heads: Heads H.
        q_dim: Rows q of each matrix.
        k_dim: Columns k of each matrix.
        center: ``"token"``, ``"sample"`` or None.
        num_prefix: Tokens at the start that are no word tokens: 1 for a class token, else 0.
        recompute: Project again in the backward pass instead of keeping the projection.
    """

    num_heads: int
    q_dim: int
    k_dim: int
    center: str | None
    num_prefix: int
    recompute: bool


def split_heads(projected: Tensor, num_heads: int, q_dim: int) -> tuple[Tensor, Tensor]:
    """Views (B, N, H, q) and (B, N, H, k) of a projection (B, N, H * (q + k))."""
    x, y = projected.tensor_split([num_heads * q_dim], dim=-1)
    sizes = (*projected.shape[:-1], num_heads)
    return x.view(*sizes, q_dim), y.view(*sizes, y.shape[-1] // num_heads)


def means(words: Tensor, count: Tensor, spec: CovarianceSpec) -> Tensor:
    """What ``spec.center`` subtracts from projected words (c, N, P) with 0 at padding: (c, 1, P), summed in float32.

    Shape:
        count: the valid tokens of each sample, (c, 1, 1).
    """
    if spec.center == "token":
        return words.sum(dim=1, keepdim=True, dtype=count.dtype) / count
    parts = split_heads(words, spec.num_heads, spec.q_dim)
    scalars = [part.sum(dim=(1, 3), dtype=count.dtype) / (count[..., 0] * part.shape[-1]) for part in parts]
    widths = (spec.q_dim, spec.k_dim)
    channels = [scalar.repeat_interleave(width, dim=1) for scalar, width in zip(scalars, widths, strict=True)]
    return torch.cat(channels, dim=1).unsqueeze(1)


def count_words(tokens: Tensor, mask: Tensor | None, spec: CovarianceSpec, dtype: torch.dtype) -> Tensor:
    """The valid word tokens of each sample, at least 1: (B, 1, 1)."""
    B, T, _ = tokens.shape
    if mask is None:
        return tokens.new_full((B, 1, 1), max(1, T - spec.num_prefix), dtype=dtype)
    return valid_counts(mask[:, spec.num_prefix :]).to(dtype).view(B, 1, 1)


class TokenChunks:
    """The steps for one chunk of samples; iterates over (its place in the batch, the same many samples from 0)."""

    def __init__(
        self,
        tokens: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        spec: CovarianceSpec,
        dtype: torch.dtype,
    ) -> None:
        self.tokens, self.mask, self.spec = tokens, mask, spec
        self.weight, self.bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        self.sum_dtype = at_least_float32(dtype)
        B, T, _ = tokens.shape
        self.width = weight.shape[0]
        self.count = count_words(tokens, mask, spec, self.sum_dtype)
        budget = CPU_CHUNK_BYTES if tokens.device.type == "cpu" else GPU_CHUNK_BYTES
        self.size = max(1, min(B, budget // max(1, T * self.width * dtype.itemsize)))

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        for start in range(0, self.tokens.shape[0], self.size):
            stop = min(start + self.size, self.tokens.shape[0])
            yield slice(start, stop), slice(0, stop - start)

    def new_buffer(self, samples: int) -> Tensor:
        """Uninitialised memory for the projections (samples, T, H * (q + k))."""
        return self.weight.new_empty(samples, self.tokens.shape[1], self.width)

    def rows(self, part: slice) -> Tensor:
        """The tokens as rows (c * T, D) in the dtype of the projection; tokens under the mask are 0."""
        tokens = clear_padding(self.tokens[part], None if self.mask is None else self.mask[part])
        return tokens.to(self.weight.dtype).flatten(0, 1)

    def project(self, rows: Tensor, part: slice, out: Tensor) -> Tensor:
        """Project rows into ``out`` (c, T, H * (q + k)) and centre them; returns the word tokens' part of it."""
        torch.mm(rows, self.weight.mT, out=out.view(-1, self.width))
        words = out[:, self.spec.num_prefix :]
        if self.bias is not None:
            words += self.bias
            self._clear_padding_(words, part)
        return self._center_(words, part)

    def multiply(self, words: Tensor, out: Tensor) -> None:
        """Write ``X^T Y`` of each head into ``out`` (c, H, q, k), summed in its dtype."""
        if not (words.is_cuda and MIXED_BMM):
            words = words.to(out.dtype)
        products = [_bmm(x.mT, y, out.dtype) for x, y in zip(*self._heads(words), strict=True)]
        torch.stack(products, dim=1, out=out)

    def differentiate(self, words: Tensor, grad_matrix: Tensor, part: slice, out: Tensor) -> None:
        """Write the gradient of the projected word tokens into ``out`` (c, N, H * (q + k))."""
        views = (*self._heads(words), grad_matrix.unbind(dim=1), *self._heads(out))
        for x, y, grad, grad_x, grad_y in zip(*views, strict=True):
            torch.bmm(y, grad.mT, out=grad_x)
            torch.bmm(x, grad, out=grad_y)
        if self.spec.center == "sample":  # centred tokens make a centred gradient for "token" only
            self._center_(out, part)

    def _center_(self, words: Tensor, part: slice) -> Tensor:
        if self.spec.center is not None:
            words -= means(words, self.count[part], self.spec)
            self._clear_padding_(words, part)
        return words

    def _clear_padding_(self, words: Tensor, part: slice) -> None:
        if self.mask is not None:
            words.masked_fill_(self.mask[part, self.spec.num_prefix :, None], 0.0)

    def _heads(self, words: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Views (c, N, q) and (c, N, k), one for each head."""
        x, y = split_heads(words, self.spec.num_heads, self.spec.q_dim)
        return x.unbind(dim=2), y.unbind(dim=2)


def _bmm(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.bmm(a, b) if a.dtype == dtype else torch.bmm(a, b, out_dtype=dtype)

"""The largest singular value of matrices by power iteration, and the fast path of svPN, which needs nothing else.

Reference: arXiv:2104.10935, equation 6.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sot_core.math.eager import can_read_values, is_recorded
from sot_core.math.precision import no_autocast

__all__ = ["FLOOR", "START_FLOOR", "leading_triple", "scale_by_leading_value"]

FLOOR = 1e-10  # a matrix or vector below it counts as zero: bounds gradients, that of s^alpha above all
START_FLOOR = 0.01  # a start vector v of which less is left, |Q v| / (|v| max |Q_ij|), is replaced


def leading_triple(matrix: Tensor, start: Tensor, num_iters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Power iteration ``u = unit(Q v)``, ``v = unit(Q^T u)`` from a start vector; s is the last ``|Q^T u|``.

    Where Q maps the start vector to almost nothing, ``|Q v| < START_FLOOR |v| max |Q_ij|``, u would be rounding noise
    brought to unit length, and its gradient one over that noise. There the iteration starts from Q's row with the
    largest entry instead, which Q never maps to almost nothing.

    Works on the matrix divided by its largest absolute entry (not differentiated: u and v do not depend on it), so
    that squares neither overflow nor vanish; only vectors are divided.

    Shape:
        matrix (..., q, k), start (k,) -> u (..., q, 1), s (..., 1, 1), v (..., 1, k).
    """
    scale, _, steps = _iterate(matrix, start, num_iters)
    u, _, v, length = steps[-4:]
    return u, length * scale, v


def scale_by_leading_value(
    matrix: Tensor, start: Tensor, alpha: float, num_iters: int, floor: Tensor | float = FLOOR
) -> Tensor:
    """``matrix * max(s, floor) ** (alpha - 1)`` with s from :func:`leading_triple`.

    The gradient is written by hand: few operations, one temporary of the matrix's size.

    Args:
        matrix: Q.
        start: Start of the iteration.
        alpha: Exponent.
        num_iters: Power iterations.
        floor: Below it the factor is constant.

    Shape:
        matrix (..., q, k), start (k,), floor () or (..., 1, 1) -> (..., q, k).
    """
    if is_recorded():
        return _scale_by_leading_value(matrix, start, alpha, num_iters, floor)
    result: Tensor = _ScaleByLeadingValue.apply(matrix, start, alpha, num_iters, floor)
    return result


def _scale_by_leading_value(
    matrix: Tensor, start: Tensor, alpha: float, num_iters: int, floor: Tensor | float
) -> Tensor:
    """The same operation by operation, for compilers and higher derivatives."""
    _, s, _ = leading_triple(matrix, start, num_iters)
    return matrix * s.clamp_min(floor).pow(alpha - 1.0)


class _ScaleByLeadingValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, start: Tensor, alpha: float, num_iters: int, floor: Tensor | float) -> Tensor:
        scale, begin, steps = _iterate(matrix, start, num_iters)
        s = steps[-1] * scale
        factor = s.clamp_min(floor).pow(alpha - 1.0)
        ctx.save_for_backward(matrix, start, scale, s, factor, begin.vector, begin.keep, begin.row, *steps)
        ctx.alpha, ctx.num_iters, ctx.floor = alpha, num_iters, floor
        return matrix * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix, start, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: this derivative will be differentiated
            output = _scale_by_leading_value(matrix, start, ctx.alpha, ctx.num_iters, ctx.floor)
            inputs = [value for value, need in zip((matrix, start), ctx.needs_input_grad, strict=False) if need]
            found = iter(torch.autograd.grad(output, inputs, grad, create_graph=True))
            return *(next(found) if need else None for need in ctx.needs_input_grad[:2]), None, None, None
        with no_autocast(matrix):
            return *_differentiate(ctx, grad, matrix, *saved), None, None, None


def _differentiate(
    ctx: Any,
    grad: Tensor,
    matrix: Tensor,
    scale: Tensor,
    s: Tensor,
    factor: Tensor,
    first: Tensor,
    keep: Tensor,
    row: Tensor | None,
    *steps: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of the matrix and of the start vector."""
    slope = torch.where(s > ctx.floor, factor * (ctx.alpha - 1.0) / s, 0.0)
    grad_s = (grad * matrix).sum(dim=(-2, -1), keepdim=True) * slope
    starts = [first.expand_as(steps[2]), *steps[2::4]]
    lefts, rights = [], []  # the gradient through s is the sum of left @ right
    right = grad_s * steps[-2]
    for i in reversed(range(ctx.num_iters)):
        u, u_length, _, _ = steps[4 * i : 4 * i + 4]
        left = _unit_gradient(matrix @ right.mT, u, u_length) / scale
        lefts += [u, left]
        rights += [right, starts[i]]
        grad_v = left.mT @ matrix
        if i > 0:
            right = _unit_gradient(grad_v, *steps[4 * i - 2 : 4 * i]) / scale
    grad_matrix = (torch.cat(lefts, dim=-1) @ torch.cat(rights, dim=-2)).addcmul_(grad, factor)
    if row is not None:
        grad_matrix.scatter_add_(-2, row, grad_v.masked_fill(keep, 0.0) / scale)
        grad_v = grad_v.masked_fill(~keep, 0.0)
    return grad_matrix, grad_v.flatten(0, -2).sum(dim=0)


class _Begin(NamedTuple):
    """Where each matrix's iteration begins.

    Attributes:
        vector: v_0, (1, k) or (..., 1, k).
        image: ``Q v_0`` over the scale, (..., q, 1).
        keep: Whether v_0 is the start vector and not a row, (..., 1, 1).
        row: Index of that row, repeated for :func:`torch.gather`, (..., 1, k); None where all matrices keep the start
            vector and that could be seen without waiting for a GPU.
    """

    vector: Tensor
    image: Tensor
    keep: Tensor
    row: Tensor | None


def _iterate(matrix: Tensor, start: Tensor, num_iters: int) -> tuple[Tensor, _Begin, list[Tensor]]:
    """The scale, where it begins, and u with its length and v with its length for each iteration."""
    scale = matrix.detach().abs().amax(dim=(-2, -1), keepdim=True).clamp_min(FLOOR)
    begin = _begin(matrix, start, scale)
    steps: list[Tensor] = []
    for i in range(num_iters):
        u, u_length = _unit(matrix @ steps[-2].mT / scale if i > 0 else begin.image)
        v, v_length = _unit(u.mT @ matrix / scale)
        steps += [u, u_length, v, v_length]
    return scale, begin, steps


def _begin(matrix: Tensor, start: Tensor, scale: Tensor) -> _Begin:
    image = matrix @ start.unsqueeze(-1) / scale
    floor = (START_FLOOR * torch.linalg.vector_norm(start.detach())).clamp_min(FLOOR)
    keep = torch.linalg.vector_norm(image.detach(), dim=(-2, -1), keepdim=True) >= floor
    if can_read_values(keep) and keep.all().item():
        return _Begin(start.unsqueeze(0), image, keep, None)
    row = matrix.detach().abs().amax(dim=-1, keepdim=True).argmax(dim=-2, keepdim=True)
    row = row.expand(*matrix.shape[:-2], 1, matrix.shape[-1])
    vector = torch.where(keep, start, matrix.gather(-2, row) / scale)
    image = torch.where(keep, image, matrix @ vector.mT / scale)  # to the bit what it is without the other matrices
    return _Begin(vector, image, keep, row)


def _unit(vector: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (..., n, 1) or (..., 1, n) of length 1, and the lengths they had."""
    length = torch.linalg.vector_norm(vector, dim=(-2, -1), keepdim=True).clamp_min(FLOOR)
    return vector / length, length


def _unit_gradient(grad: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """The gradient of the vector that :func:`_unit` divided."""
    along = (unit * grad).sum(dim=(-2, -1), keepdim=True)
    return torch.addcmul(grad, unit, along, value=-1.0) / length

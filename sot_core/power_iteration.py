"""The largest singular value of matrices by power iteration, and the fast path of svPN, which needs nothing else.

Reference: arXiv:2104.10935, equation 6.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sot_core.runtime import is_recorded

__all__ = ["FLOOR", "leading_triple", "scale_by_leading_value"]

FLOOR = 1e-10  # a matrix or vector below it counts as zero: bounds gradients, that of s^alpha above all


def leading_triple(matrix: Tensor, start: Tensor, num_iters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Power iteration ``u = unit(Q v)``, ``v = unit(Q^T u)`` from a start vector; s is the last ``|Q^T u|``.

    Works on the matrix divided by its largest absolute entry (not differentiated: u and v do not depend on it), so
    that squares neither overflow nor vanish; only vectors are divided.

    Shape:
        matrix (..., q, k), start (k,) -> u (..., q, 1), s (..., 1, 1), v (..., 1, k).
    """
    scale, steps = _iterate(matrix, start, num_iters)
    u, _, v, length = steps[-4:]
    return u, length * scale, v


def scale_by_leading_value(matrix: Tensor, start: Tensor, alpha: float, num_iters: int) -> Tensor:
    """``matrix * s ** (alpha - 1)`` with s from :func:`leading_triple`.

    The gradient is written by hand: few operations, one temporary of the matrix's size.

    Shape:
        matrix (..., q, k), start (k,) -> (..., q, k).
    """
    if is_recorded():
        return _scale_by_leading_value(matrix, start, alpha, num_iters)
    result: Tensor = _ScaleByLeadingValue.apply(matrix, start, alpha, num_iters)
    return result


def _scale_by_leading_value(matrix: Tensor, start: Tensor, alpha: float, num_iters: int) -> Tensor:
    """The same operation by operation, for compilers and higher derivatives."""
    _, s, _ = leading_triple(matrix, start, num_iters)
    return matrix * s.clamp_min(FLOOR).pow(alpha - 1.0)


class _ScaleByLeadingValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, start: Tensor, alpha: float, num_iters: int) -> Tensor:
        scale, steps = _iterate(matrix, start, num_iters)
        s = steps[-1] * scale
        factor = s.clamp_min(FLOOR).pow(alpha - 1.0)
        ctx.save_for_backward(matrix, start, scale, s, factor, *steps)
        ctx.alpha, ctx.num_iters = alpha, num_iters
        return matrix * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix, start, scale, s, factor, *steps = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: this derivative will be differentiated
            output = _scale_by_leading_value(matrix, start, ctx.alpha, ctx.num_iters)
            inputs = [value for value, need in zip((matrix, start), ctx.needs_input_grad, strict=False) if need]
            found = iter(torch.autograd.grad(output, inputs, grad, create_graph=True))
            return *(next(found) if need else None for need in ctx.needs_input_grad[:2]), None, None

        slope = torch.where(s > FLOOR, factor * (ctx.alpha - 1.0) / s, 0.0)
        grad_s = (grad * matrix).sum(dim=(-2, -1), keepdim=True) * slope
        starts = [start.expand_as(steps[2]), *steps[2::4]]
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
        return grad_matrix, grad_v.flatten(0, -2).sum(dim=0), None, None


def _iterate(matrix: Tensor, start: Tensor, num_iters: int) -> tuple[Tensor, list[Tensor]]:
    """The scale, and u with its length and v with its length for each iteration."""
    scale = matrix.detach().abs().amax(dim=(-2, -1), keepdim=True).clamp_min(FLOOR)
    steps: list[Tensor] = []
    v = start.unsqueeze(0)
    for _ in range(num_iters):
        u, u_length = _unit(matrix @ v.mT / scale)
        v, v_length = _unit(u.mT @ matrix / scale)
        steps += [u, u_length, v, v_length]
    return scale, steps


def _unit(vector: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (..., n, 1) or (..., 1, n) of length 1, and the lengths they had."""
    length = torch.linalg.vector_norm(vector, dim=(-2, -1), keepdim=True).clamp_min(FLOOR)
    return vector / length, length


def _unit_gradient(grad: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """The gradient of the vector that :func:`_unit` divided."""
    along = (unit * grad).sum(dim=(-2, -1), keepdim=True)
    return torch.addcmul(grad, unit, along, value=-1.0) / length

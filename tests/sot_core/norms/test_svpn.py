"""svPN of matrices without gaps between their singular values: results and gradients within a derived bound.

Let Q change by dQ of Frobenius norm 1. Let E be what deflation has left of Q, e its largest singular value and D a
bound of ``|dE|``; D = 1 at first. The iteration makes unit vectors ``x_n = unit(E x_{n-1})``, ``unit(E^T x_{n-1})`` in
turn; l_n is the length before. ``unit`` divides a change by that length or more, so
``|dx_n| <= (|dE| + e |dx_{n-1}|) / l_n``, or in units of D / e::

    a_n = (1 + a_{n-1}) e / l_n,    a_0 = 0 for the start vector, e / |row| for a row of E.

u is x_{2T-1}; call its a_n A. Then ``|du| <= A D / e``, and b = E^T u, of length s, has ``|db| <= (1 + A) D >= |ds|``.
Deflation leaves ``E - u b^T``, which is ``(1 - u u^T) E``, so that its change is at most ``(1 + 2 A) D``.
With ``h(s) = max(s, floor)^(alpha-1)``, where ``|h'| s <= (1 - alpha) h``, what enters the result changes by at most

- ``h u b^T``, a value found: ``3 h (1 + A) D``;
- ``h E``, the last value and the rest: ``h D (1 + (1 - alpha) (1 + A) |E| / s)``;
- ``E' / (s^(1-alpha) + eps)``, the rest after it: ``h D (1 + 2 A + (1 - alpha) (1 + A) |E'| / s)``.

Where only rounding noise is left of E, it is raised linearly: a factor of at most 1e-10^(alpha-1) on the change of E.
There u_1 ... u_i span Q's range. Rotating them within it changes nothing, and out of it they change by
``|dE_j| / |E_j x_{2T-2}|``, which makes the change of E at most the product of ``1 + s_j / |E_j x_{2T-2}|``.

All lengths are those of the matrix at hand, in float64. None of this knows the dtype or how a processor rounds.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from sot_core import singular_value_power_norm
from sot_core.math import power_iteration
from sot_core.math.power_iteration import FLOOR, START_FLOOR
from tests.sot_core.cases import assert_close, examples
from tests.sot_core.matrices import REPEATED, both_dtypes, rotation


@dataclass
class Bound:
    """The largest result and gradient, in Frobenius length, of one matrix."""

    value: float = 0.0
    gradient: float = 0.0


def derive_bound(matrix, start, alpha, num_values, num_iters, residual_eps, eps) -> Bound:
    """The bound of the module's docstring; ``eps`` is that of the dtype under test."""
    bound, E, D, out_of_range = Bound(), matrix, 1.0, 1.0
    rank = min(matrix.shape) if num_values is None else num_values
    floor = max(FLOOR, 0.0 if rank == 1 else sum(matrix.shape) * eps * matrix.norm().item())
    for i in range(rank):
        size = E.norm().item()
        if size <= floor:
            bound.value += floor**alpha
            bound.gradient += FLOOR ** (alpha - 1.0) * out_of_range
            return bound
        e = torch.linalg.matrix_norm(E, 2).item()
        x, a = first_vector(E, start)
        lengths = []
        for n in range(2 * num_iters - 1):
            x = E @ x if n % 2 == 0 else E.T @ x
            lengths.append(x.norm().item())
            x = x / lengths[-1]
            a = (1.0 + a) * e / lengths[-1]
        b = E.T @ x
        s, rest = b.norm().item(), (E - torch.outer(x, b)).norm().item()
        h = max(s, floor) ** (alpha - 1.0)
        if i == rank - 1 and num_values is not None and residual_eps == 0.0:
            bound.value += h * size
            bound.gradient += h * D * (1.0 + (1.0 - alpha) * (1.0 + a) * size / s)
        else:
            bound.value += h * s
            bound.gradient += 3.0 * h * (1.0 + a) * D
        if i == rank - 1 and num_values is not None and residual_eps > 0.0:
            bound.value += h * rest
            bound.gradient += h * D * (1.0 + 2.0 * a + (1.0 - alpha) * (1.0 + a) * rest / s)
        E, D, out_of_range = E - torch.outer(x, b), (1.0 + 2.0 * a) * D, out_of_range * (1.0 + s / lengths[-1])
    return bound


def first_vector(E, start):
    """x_0 and a_0. Which of the two vectors it is, and which row, must not hang on a rounding."""
    largest, order = E.abs().amax(dim=1).sort(descending=True)
    left = (E @ start).norm() / largest[0]
    threshold = START_FLOOR * start.norm()
    assume(not 0.98 * threshold < left < 1.02 * threshold)
    if left > threshold:
        return start / start.norm(), 0.0
    assume(len(largest) == 1 or largest[1] < 0.9999 * largest[0])
    row = E[order[0]]
    return row / row.norm(), (torch.linalg.matrix_norm(E, 2) / row.norm()).item()


def check(matrix, start, weights, alpha, num_values, num_iters, residual_eps):
    matrix = matrix.detach().clone().requires_grad_()
    norm = singular_value_power_norm(matrix, start.to(matrix), alpha, num_values, num_iters, residual_eps)
    (norm * weights.to(matrix)).sum().backward()
    eps = torch.finfo(matrix.dtype).eps
    bound = derive_bound(
        matrix.detach().double(), start.to(matrix).double(), alpha, num_values, num_iters, residual_eps, eps
    )
    assert norm.norm().item() <= 1.01 * bound.value
    assert matrix.grad.norm().item() <= 1.1 * bound.gradient * weights.norm().item()
    return bound


@both_dtypes
@pytest.mark.parametrize("residual_eps", [0.0, 1e-5])
@pytest.mark.parametrize("num_values, num_iters", [(1, 1), (1, 3), (2, 2), (3, 2), (3, 3), (None, 2), (None, 3)])
@examples
@given(
    values=st.lists(st.sampled_from(REPEATED), min_size=3, max_size=5),
    rows=st.integers(0, 2),
    columns=st.integers(0, 2),
    alpha=st.sampled_from((0.3, 0.5, 1.0)),
    towards=st.integers(-2, 4),
    seed=st.integers(0, 10**6),
)
def test_rotated_matrices(dtype, residual_eps, num_values, num_iters, values, rows, columns, alpha, towards, seed):
    """Repeated, nearly repeated and zero values; start vectors that are random, zero or one of the singular vectors."""
    generator, count = torch.Generator().manual_seed(seed), len(values)
    u, v = rotation(count + rows, generator), rotation(count + columns, generator)
    matrix = (u[:, :count] * torch.tensor(values, dtype=torch.float64)) @ v[:count]
    start = torch.randn(count + columns, dtype=torch.float64, generator=generator)
    if towards >= -1:
        start = 0.0 * start if towards == -1 else v[min(towards, count - 1)]
    weights = torch.randn(matrix.shape, generator=generator)
    check(matrix.to(dtype), start, weights, alpha, num_values, num_iters, residual_eps)


@pytest.mark.parametrize("num_values, num_iters", [(1, 1), (1, 3), (3, 2)])
def test_the_same_whether_or_not_values_may_be_read(num_values, num_iters, monkeypatch):
    """Where all matrices keep the start vector, and it can be seen, the other vectors are not computed."""
    matrix = torch.randn(4, 5, 6, dtype=torch.float64, requires_grad=True)
    start = torch.randn(6, dtype=torch.float64, requires_grad=True)
    found = []
    for can_read in (True, False):
        monkeypatch.setattr(power_iteration, "can_read_values", lambda tensor, can_read=can_read: can_read)
        normalized = singular_value_power_norm(matrix, start, 0.5, num_values, num_iters)
        found.append((normalized, *torch.autograd.grad(normalized.sin().sum(), (matrix, start))))
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, rtol=1e-12)


def test_a_start_vector_that_a_matrix_maps_to_nothing_spoils_only_its_own_gradient():
    """The matrix of rank one whose rows are orthogonal to the start vector gets its exact norm, and no more."""
    start = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    orthogonal = torch.outer(torch.tensor([3.0, 4.0]), torch.tensor([1.0, -1.0, 0.0])).double()
    matrix = torch.stack([orthogonal, torch.randn(2, 3, dtype=torch.float64)])
    normalized = singular_value_power_norm(matrix, start)
    assert_close(normalized[0], orthogonal / torch.linalg.matrix_norm(orthogonal, 2).sqrt(), rtol=1e-12)
    (grad,) = torch.autograd.grad(normalized.sin().sum(), start)
    (alone,) = torch.autograd.grad(singular_value_power_norm(matrix[1:], start).sin().sum(), start)
    assert_close(grad, alone, rtol=1e-12)
    assert gradcheck(lambda matrix: singular_value_power_norm(matrix, start.detach()), matrix.clone().requires_grad_())
    assert gradgradcheck(
        lambda matrix: singular_value_power_norm(matrix, start.detach()),
        matrix.clone().requires_grad_(),
        fast_mode=True,
    )

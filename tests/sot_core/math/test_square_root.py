"""The matrix square root by Newton-Schulz iteration."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sot_core import matrix_square_root
from sot_core.math.power_iteration import FLOOR
from tests.sot_core.cases import examples
from tests.sot_core.matrices import REPEATED, both_dtypes, rotation, unit_weights


@examples
@given(exponent=st.floats(-45.0, 25.0), rank=st.integers(0, 4), num_iters=st.integers(1, 7))
def test_extreme_matrices(exponent, rank, num_iters):
    factor = torch.randn(2, 4, rank, generator=torch.Generator().manual_seed(rank))
    matrix = (factor @ factor.mT * 10.0**exponent).requires_grad_()
    root = matrix_square_root(matrix, num_iters)
    root.sum().backward()
    assert root.isfinite().all()
    assert matrix.grad.isfinite().all()
    assert rank > 0 or (root == 0.0).all()


@both_dtypes
@examples
@given(
    values=st.lists(st.sampled_from(REPEATED), min_size=3, max_size=6),
    num_iters=st.sampled_from((5, 12, 20, 30, 50, 100)),
)
def test_repeated_values_within_the_bound(dtype, values, num_iters):
    """The iteration makes F = sqrt(t) p(A) of A = S / t, t = tr S: ``dF = sqrt(t) p'(A)[dA] + p(A) dt / (2 sqrt(t))``.

    p is concave on [0, 1] with slope 1.5^n at 0, where n stops at 1.5^n < 1.5 FLOOR^-0.5, and p(x) <= sqrt(x) makes
    |p(A)| <= 1; ``|dt| <= sqrt(d) |dS|`` and ``|dA| <= (1 + sqrt(d)) |dS| / t``.
    """
    vectors = rotation(len(values))
    matrix = (vectors * torch.tensor(values, dtype=torch.float64)) @ vectors.mT
    matrix = ((matrix + matrix.mT) / 2.0).to(dtype).requires_grad_()
    root = matrix_square_root(matrix, num_iters)
    (root * unit_weights(matrix)).sum().backward()
    trace, d = max(sum(values), FLOOR), len(values)
    assert root.norm() <= 1.01 * trace**0.5
    slope = min(1.5**num_iters, 1.5 * FLOOR**-0.5)
    assert matrix.grad.norm() <= 1.01 * (slope * (1.0 + d**0.5) + d**0.5 / 2.0) / trace**0.5


@pytest.mark.parametrize("num_iters", [12, 30, 100])
def test_more_iterations_come_closer(num_iters):
    vectors, values = rotation(6), torch.tensor([4.0, 1.0, 0.1, 1e-2, 1e-3, 0.0]).double()
    matrix, exact = (vectors * values) @ vectors.mT, (vectors * values.sqrt()) @ vectors.mT
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.float64, 1e-5)):
        error = (matrix_square_root(matrix.to(dtype), num_iters) - exact).norm()
        assert error < max(tolerance, 0.7**num_iters)

"""The exact path: powers of all singular values."""

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sot_core.math.power_iteration import FLOOR
from sot_core.math.svd_power import singular_value_power
from tests.sot_core.cases import assert_close, examples
from tests.sot_core.matrices import REPEATED, both_dtypes, rotated, unit_weights

SHAPES = [(5, 3), (3, 5), (4, 4), (1, 3), (3, 1)]


def by_autograd(matrix, alpha):
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return (u * s.pow(alpha).unsqueeze(-2)) @ vh


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradient_is_that_of_the_svd(shape, alpha):
    matrix, weights = torch.randn(2, 3, *shape, requires_grad=True), torch.randn(2, 3, *shape)
    outputs = [function(matrix, alpha) for function in (singular_value_power, by_autograd)]
    assert_close(*outputs, rtol=1e-12)
    assert_close(*(torch.autograd.grad(output, matrix, weights)[0] for output in outputs), rtol=1e-10)


@pytest.mark.usefixtures("float64")
def test_alpha_one_is_the_identity():
    matrix = torch.randn(2, 5, 3, requires_grad=True)
    normalized = singular_value_power(matrix, 1.0)
    normalized.square().sum().backward()
    assert_close(normalized, matrix, rtol=1e-12)
    assert_close(matrix.grad, 2.0 * matrix, rtol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "values", [(2.0, 2.0, 1.0), (1.0, 1.0, 1.0), (2.0, 1.0, 1.0 + 1e-9), (1.0, 1e-3, 1e-3)], ids=str
)
def test_gradient_at_repeated_values_against_finite_differences(values):
    u, _, vh = torch.linalg.svd(torch.randn(4, 3), full_matrices=False)
    matrix = ((u * torch.tensor(values)) @ vh).requires_grad_()
    weights, direction, step = torch.randn(4, 3), torch.randn(4, 3), 1e-6 * values[-1] ** 0.9
    singular_value_power(matrix, 0.5).backward(weights)
    ahead, behind = (singular_value_power(matrix + sign * step * direction, 0.5) for sign in (1.0, -1.0))
    expected = ((ahead - behind) * weights).sum() / (2.0 * step)
    assert (matrix.grad * direction).sum().item() == pytest.approx(expected.item(), rel=1e-3)


@both_dtypes
@examples
@given(values=st.lists(st.sampled_from(REPEATED), min_size=3, max_size=6), alpha=st.sampled_from((0.3, 0.5, 1.0)))
def test_repeated_values_within_the_bound(dtype, values, alpha):
    """The gradient is made of quotients ``(f(s) +- f(t)) / (s +- t)``, none above f's slope at 0, floor^(alpha-1)."""
    matrix = rotated(values, dtype).requires_grad_()
    normalized = singular_value_power(matrix, alpha)
    weights = unit_weights(matrix)
    (normalized * weights).sum().backward()
    assert normalized.norm() <= 1.01 * torch.tensor(values).pow(alpha).norm() + 1e-2
    assert matrix.grad.norm() <= 1.01 * FLOOR ** (alpha - 1.0)


@pytest.mark.parametrize("factor", [0.0, 1e-12])
def test_below_the_floor_the_power_is_linear(factor):
    matrix = (factor * torch.randn(4, 3, dtype=torch.float64)).requires_grad_()
    weights = torch.randn(4, 3, dtype=torch.float64)
    normalized = singular_value_power(matrix, 0.5)
    normalized.backward(weights)
    assert_close(normalized, 1e5 * matrix, rtol=1e-9)
    assert_close(matrix.grad, 1e5 * weights, rtol=1e-9)


def test_rounding_noise_is_not_raised():
    """3 tokens in 8 dimensions: the singular values that should be 0 are about 1e-8, their roots would be 1e-4."""
    matrix = torch.randn(8, 2) @ torch.randn(2, 8)
    exact = singular_value_power(matrix.double(), 0.5)
    assert (singular_value_power(matrix, 0.5) - exact).abs().max() < 1e-3
    assert torch.linalg.matrix_rank(singular_value_power(matrix, 0.5), rtol=1e-3) == 2


def test_svd_that_does_not_converge_is_computed_in_float64(monkeypatch, caplog):
    svd = torch.linalg.svd

    def fails_in_float32(matrix, full_matrices):
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("no convergence")
        return svd(matrix, full_matrices=full_matrices)

    monkeypatch.setattr(torch.linalg, "svd", fails_in_float32)
    matrix = torch.randn(2, 4, 3)
    with caplog.at_level(logging.WARNING):
        normalized = singular_value_power(matrix, 0.5)
    assert "a batch of 2 did not converge" in caplog.text
    assert normalized.dtype == torch.float32
    monkeypatch.undo()
    assert_close(normalized, singular_value_power(matrix, 0.5))

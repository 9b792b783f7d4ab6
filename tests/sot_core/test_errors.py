"""What the functions and modules refuse, and what they say."""

import pytest
import torch

from sot_core import (
    GlobalCovariancePool,
    MultiheadCrossCovariancePool,
    SingularValuePowerNorm,
    cross_covariance,
    matrix_square_root,
    singular_value_power_norm,
)
from sot_core.projection import create_projection
from tests.sot_core.cases import head

X = torch.randn(2, 3, 7, 5)


@pytest.mark.parametrize(
    "x, y, mask, center, message",
    [
        (X[0], X, None, "token", r"must be \(B, H, N, q\) and \(B, H, N, k\), got \(3, 7, 5\) and \(2, 3, 7, 5\)"),
        (X, X[:, :, 1:], None, "token", r"got \(2, 3, 7, 5\) and \(2, 3, 6, 5\)"),
        (X, X, torch.zeros(2, 5, dtype=torch.bool), "token", r"padding_mask must be \(B, N\) = \(2, 7\), got \(2, 5\)"),
        (X, X, None, "channel", r"Unknown center 'channel', expected one of \['token', 'sample', None\]"),
    ],
    ids=["dimensions", "lengths", "mask", "center"],
)
def test_cross_covariance(x, y, mask, center, message):
    with pytest.raises(ValueError, match=message):
        cross_covariance(x, y, mask, center)


NUMBERS = [
    ({"alpha": 0.0}, r"alpha must be in \(0, 1\], got 0.0"),
    ({"alpha": 1.5}, r"alpha must be in \(0, 1\], got 1.5"),
    ({"num_iters": 0}, "num_iters must be at least 1, got 0"),
    ({"num_singular_values": 0}, "num_singular_values must be at least 1 or None, got 0"),
    ({"residual_eps": -1e-5}, "residual_eps must not be negative, got -1e-05"),
    ({"num_singular_values": 2}, "num_singular_values=2 needs num_iters >= 2, got 1: after deflation"),
    ({"num_singular_values": None}, "num_singular_values=None needs num_iters >= 2, got 1"),
]


@pytest.mark.parametrize("options, message", NUMBERS, ids=lambda value: str(value)[:30])
def test_svpn(options, message):
    with pytest.raises(ValueError, match=message):
        singular_value_power_norm(torch.randn(2, 4, 3), torch.ones(3), **options)
    with pytest.raises(ValueError, match=message):
        SingularValuePowerNorm(3, **options)


def test_svpn_with_a_start_vector_of_another_length():
    with pytest.raises(ValueError, match=r"start_vector must be \(3,\) for a matrix of 3 columns, got \(4,\)"):
        singular_value_power_norm(torch.randn(2, 4, 3), torch.ones(4))


def test_one_iteration_for_two_values_would_normalise_rounding_noise():
    """Why it is refused: after deflation the residual maps the start vector to 0."""
    matrix, start = torch.randn(5, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    u = torch.nn.functional.normalize(matrix @ start, dim=0)
    v = torch.nn.functional.normalize(matrix.T @ u, dim=0)
    residual = matrix - (u @ matrix @ v) * torch.outer(u, v)
    assert (residual @ start).abs().max() < 1e-14


def test_matrix_square_root():
    with pytest.raises(ValueError, match=r"matrix must be \(\.\.\., d, d\), got \(2, 4, 3\)"):
        matrix_square_root(torch.randn(2, 4, 3))
    with pytest.raises(ValueError, match=r"matrix must be \(\.\.\., d, d\), got \(4,\)"):
        matrix_square_root(torch.randn(4))
    with pytest.raises(ValueError, match="num_iters must be at least 1, got 0"):
        matrix_square_root(torch.eye(3), num_iters=0)


@pytest.mark.parametrize("name", ["embed_dim", "num_heads", "q_dim", "k_dim"])
def test_pool_sizes(name):
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        MultiheadCrossCovariancePool(**{"embed_dim": 6, "num_heads": 2, "q_dim": 3, "k_dim": 2, name: 0})


def test_pool_names():
    with pytest.raises(ValueError, match="Unknown center 'both'"):
        MultiheadCrossCovariancePool(6, 2, 3, center="both")
    with pytest.raises(ValueError, match="Unknown center 'both'"):
        GlobalCovariancePool(6, 2, center="both")
    with pytest.raises(ValueError, match="Unknown projection 'cubic', expected one of "):
        MultiheadCrossCovariancePool(6, 2, 3, projection="cubic")
    with pytest.raises(ValueError, match="Unknown projection"):
        create_projection("cubic", 6, 3, bias=False)
    with pytest.raises(ValueError, match="num_iters must be positive, got 0"):
        GlobalCovariancePool(6, 2, num_iters=0)


def test_head_shapes():
    module = head()
    for tokens in (torch.randn(2, 12), torch.randn(2, 5, 11), torch.randn(2, 3, 5, 12)):
        with pytest.raises(ValueError, match=r"tokens must be \(B, N, 12\), got "):
            module(tokens)
    with pytest.raises(ValueError, match=r"padding_mask must be \(B, N\) = \(2, 5\), got \(2, 4\)"):
        module(torch.randn(2, 5, 12), torch.zeros(2, 4, dtype=torch.bool))

"""Matrices of given singular values, for the tests of what must not depend on how a processor rounds."""

import pytest
import torch

REPEATED = (2.0, 2.0 + 1e-7, 1.0, 1.0 - 1e-7, 1e-12, 0.0)  # repeated, nearly repeated and zero

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def rotation(size, generator=None):
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))[0]


def rotated(values, dtype):
    """A square matrix of these singular values and random singular vectors."""
    left, right = rotation(len(values)), rotation(len(values))
    return ((left * torch.tensor(values, dtype=torch.float64)) @ right).to(dtype)


def unit_weights(matrix):
    """Random weights of Frobenius norm 1: the gradient of the weighted sum is one row of the Jacobian, so to say."""
    weights = torch.randn_like(matrix)
    return weights / weights.norm()

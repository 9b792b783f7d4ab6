"""The normalisations that the paper compares svPN with: signed square root, layer normalisation and scales."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sot_core.math.power_iteration import FLOOR
from sot_core.math.precision import at_least_float32

__all__ = ["ElementwisePowerNorm", "LearnableScale", "RowLayerNorm", "Scale"]


class ElementwisePowerNorm(nn.Module):
    """Signed square root of each entry, then each column to unit length (ePN).

    Shape:
        (..., q, k) -> (..., q, k), a zero matrix to 0.

    Reference:
        arXiv:2104.10935, table 5b. As in the published code the columns are normalised, not the flattened matrix.
    """

    def __init__(self, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, matrix: Tensor) -> Tensor:
        values = matrix.to(at_least_float32(matrix.dtype))
        root = values.sign() * (values.abs() + self.eps).sqrt()
        length = torch.linalg.vector_norm(root, dim=-2, keepdim=True).clamp_min(FLOOR)
        normalized: Tensor = root / length
        return normalized.to(matrix.dtype)


class RowLayerNorm(nn.LayerNorm):
    """Layer normalisation of each row, in the dtype of the matrix even where the module is in half precision.

    Rows are divided by their largest entry first where it is above 1, so that no square overflows.
    """

    def forward(self, matrix: Tensor) -> Tensor:
        scale = matrix.detach().abs().amax(dim=-1, keepdim=True).clamp_min(1.0)
        rows = matrix / scale
        centered = rows - rows.mean(dim=-1, keepdim=True)
        variance = centered.square().mean(dim=-1, keepdim=True)
        normalized: Tensor = centered * (variance + self.eps / scale / scale).rsqrt()
        return normalized * self.weight.to(matrix.dtype) + self.bias.to(matrix.dtype)


class Scale(nn.Module):
    """Multiply by a fixed factor; with ``k_dim ** -0.5`` the scaling of dot-product attention."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix * self.factor

    def extra_repr(self) -> str:
        return f"factor={self.factor:g}"


class LearnableScale(nn.Module):
    """Multiply by one learnable factor, 1 at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix * self.factor

"""Projections of the tokens before a second-order pooling."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PROJECTIONS", "BatchNormReluProjection", "LinearProjection", "create_projection"]


class LinearProjection(nn.Linear):
    """A linear layer; tokens under the padding mask are projected too and ignored later."""

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(tokens)


class BatchNormReluProjection(nn.Module):
    """Linear without bias, BatchNorm over all valid tokens of the batch, ReLU: the projection of the So-ViT head.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, N, out_features); padded positions are 0.

    Reference:
        arXiv:2104.10935v1, section 3.2.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.bn = nn.BatchNorm1d(out_features)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        projected: Tensor = self.linear(tokens)
        if padding_mask is None:
            return F.relu(self._batch_norm(projected.flatten(0, 1))).view_as(projected)
        valid = ~padding_mask
        output = projected.new_zeros(projected.shape)
        output[valid] = F.relu(self._batch_norm(projected[valid])).to(output.dtype)
        return output

    def _batch_norm(self, rows: Tensor) -> Tensor:
        if self.training and rows.shape[0] < 2:  # no variance to speak of: the running statistics serve
            bn = self.bn
            return F.batch_norm(rows, bn.running_mean, bn.running_var, bn.weight, bn.bias, False, 0.0, bn.eps)
        normalized: Tensor = self.bn(rows)
        return normalized


PROJECTIONS: dict[str, type[LinearProjection] | type[BatchNormReluProjection]] = {
    "linear": LinearProjection,
    "batch_norm_relu": BatchNormReluProjection,
}


def create_projection(name: str, in_features: int, out_features: int, bias: bool) -> nn.Module:
    """Build a projection by its name in :data:`PROJECTIONS`.

    Raises:
        ValueError: if the name is unknown.
    """
    if name not in PROJECTIONS:
        raise ValueError(f"Unknown projection {name!r}, expected one of {sorted(PROJECTIONS)}")
    return PROJECTIONS[name](in_features, out_features, bias=bias)

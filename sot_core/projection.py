"""Projections of the tokens before a second-order pooling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sot_core.math.padding import clear_padding
from sot_core.math.precision import at_least_float32, autocast_dtype
from sot_core.math.token_projection import project_tokens
from sot_core.norms.features import apply_batch_norm

__all__ = [
    "PROJECTIONS",
    "BatchNormReluProjection",
    "LinearProjection",
    "TwoLayerProjection",
    "create_projection",
]


class LinearProjection(nn.Linear):
    """A linear layer.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, N, out_features); padded positions are 0.
    """

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if type(self.weight) is not nn.Parameter:  # a parametrisation or another kind of tensor, as DTensor
            return clear_padding(super().forward(clear_padding(tokens, padding_mask)), padding_mask)
        return project_tokens(tokens, *self.cast_parameters(tokens), padding_mask)[1]

    def cast_parameters(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weight and bias in the dtype in which the layer computes on the tokens, autocast's where it is on."""
        dtype = autocast_dtype(tokens)
        return self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)


class TwoLayerProjection(LinearProjection):
    """A linear layer whose first features come from one layer of an encoder, the others from another one.

    Args:
        in_features: Width D of one layer.
        first_features: Features of the first layer (> 0).
        second_features: Features of the second layer (> 0).
        bias: Whether there is a bias.

    Shape:
        tokens (B, N, 2 D), one layer beside the other, padding_mask (B, N) bool, True = ignore ->
        (B, N, first_features + second_features); padded positions are 0.
    """

    def __init__(self, in_features: int, first_features: int, second_features: int, bias: bool = False) -> None:
        super().__init__(in_features, first_features + second_features, bias=bias)
        self.sizes = [first_features, second_features]

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        weight, bias = self.cast_parameters(tokens)
        weights = torch.split(weight, self.sizes)
        biases = [None, None] if bias is None else torch.split(bias, self.sizes)
        layers = (layer.contiguous() for layer in tokens.chunk(2, dim=-1))
        parts = [
            project_tokens(layer, own_weight, own_bias, padding_mask)[1]
            for layer, own_weight, own_bias in zip(layers, weights, biases, strict=True)
        ]
        return torch.cat(parts, dim=-1)


class BatchNormReluProjection(nn.Module):
    """Linear without bias, BatchNorm over all valid tokens of the batch, ReLU: the projection of the So-ViT head.

    A batch of fewer than two valid tokens has no variance: in training the running statistics serve, unchanged.

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
        projected: Tensor = self.linear(clear_padding(tokens, padding_mask))
        rows = projected.flatten(0, 1)
        if self.training and padding_mask is not None:
            normalized = self._masked_batch_norm(rows, ~padding_mask.flatten())
        else:
            normalized = apply_batch_norm(self.bn, rows)
        return clear_padding(F.relu(normalized).view_as(projected), padding_mask)

    def _masked_batch_norm(self, rows: Tensor, valid: Tensor) -> Tensor:
        """BatchNorm in training over the valid rows, without shapes that depend on the mask; updates the statistics."""
        bn, values = self.bn, rows.to(at_least_float32(rows.dtype))
        running_mean, running_var = bn.get_buffer("running_mean"), bn.get_buffer("running_var")
        weights = valid.to(values.dtype).unsqueeze(-1)
        count = weights.sum()
        enough = count > 1.0
        mean = (values * weights).sum(dim=0) / count.clamp_min(1.0)
        var = ((values - mean).square() * weights).sum(dim=0) / count.clamp_min(1.0)
        with torch.no_grad():
            rate = enough.to(running_mean.dtype) * (bn.momentum or 0.0)
            unbiased = var * (count / (count - 1.0).clamp_min(1.0))
            running_mean.lerp_(mean.to(running_mean.dtype), rate)
            running_var.lerp_(unbiased.to(running_var.dtype), rate)
            bn.get_buffer("num_batches_tracked").add_(enough)
        mean, var = torch.where(enough, mean, running_mean), torch.where(enough, var, running_var)
        return ((values - mean) * (var + bn.eps).rsqrt() * bn.weight + bn.bias).to(rows.dtype)


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

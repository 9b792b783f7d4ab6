"""A learned mix of the token states of several layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["LayerMix"]


class LayerMix(nn.Module):
    r"""``gamma * sum_j s_j h_j``, where the weights ``s`` are a softmax of learned scores; initially the mean.

    Args:
        num_layers: Number of layers J (> 0).

    Shape:
        J tensors (B, N, D) -> (B, N, D).

    Raises:
        ValueError: if ``num_layers`` is not positive, or ``forward`` gets another number of layers.

    Reference:
        arXiv:1802.05365, equation 1, without its optional layer normalisation.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers must be positive, got {num_layers}")
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        if len(layers) != len(self.scores):
            raise ValueError(f"expected {len(self.scores)} layers, got {len(layers)}")
        weights = self.gamma * self.scores.softmax(dim=0)
        mixed = weights[0] * layers[0]
        for weight, layer in zip(weights[1:], layers[1:], strict=True):
            mixed = mixed + weight * layer
        return mixed

    def reset_parameters(self) -> None:
        """Reset the weights to the mean of the layers."""
        nn.init.zeros_(self.scores)
        nn.init.ones_(self.gamma)

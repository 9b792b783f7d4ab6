"""The top layers of a fairseq encoder, which run on the stored states of the layer below them."""

from __future__ import annotations

import copy

from fairseq.models.transformer import TransformerEncoder
from torch import Tensor, nn

__all__ = ["TopLayers"]


class TopLayers(nn.Module):
    """A copy of an encoder's top layers, and of the norm after the last one, where there is one.

    Args:
        encoder: The encoder.
        count: Number of layers (> 0).

    Shape:
        tokens (B, T, D), padding_mask (B, T), True at padding -> the same for the last layer.
    """

    def __init__(self, encoder: TransformerEncoder, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer in list(encoder.layers)[-count:])
        self.layer_norm = copy.deepcopy(encoder.layer_norm)
        self.requires_grad_(True)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        states = tokens.transpose(0, 1)  # fairseq's order
        for layer in self.layers:
            states = layer(states, encoder_padding_mask=padding_mask)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return states.transpose(0, 1), padding_mask

    def load_into(self, encoder: TransformerEncoder) -> None:
        """Copy the weights into an encoder."""
        for own, other in zip(self.layers, list(encoder.layers)[-len(self.layers) :], strict=True):
            other.load_state_dict(own.state_dict())
        if self.layer_norm is not None:
            encoder.layer_norm.load_state_dict(self.layer_norm.state_dict())

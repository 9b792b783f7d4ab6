"""A head on the states of one layer, or on a learned mix of several."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sot_core.layer_mix import LayerMix

__all__ = ["LayerHead"]


class LayerHead(nn.Module):
    """What is trained on stored states.

    Args:
        head: A module of tokens (B, T, D) and, where its ``forward`` names one, a ``padding_mask`` (B, T).
        layer: Which of the stored layers it reads.
        num_mixed: Read a learned mix of so many layers instead (all that are stored); 0: one layer.

    Attributes:
        head: The head.
        layer_mix: The weights of the layers, or None.
    """

    def __init__(self, head: nn.Module, layer: int = 0, num_mixed: int = 0) -> None:
        super().__init__()
        self.head, self.layer = head, layer
        self.layer_mix = LayerMix(num_mixed) if num_mixed else None
        self.takes_mask = "padding_mask" in inspect.signature(head.forward).parameters

    def forward(self, states: Sequence[Tensor], padding_mask: Tensor | None = None) -> Any:
        tokens = states[self.layer] if self.layer_mix is None else self.layer_mix(states)
        return self.head(tokens, padding_mask) if self.takes_mask else self.head(tokens)

"""A head on the states of one layer, or on a learned mix of several."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sot_core.layer_mix import LayerMix

__all__ = ["LayerHead"]


class LayerHead(nn.Module):
    """The module that is trained on stored states.

    Args:
        head: A module of tokens (B, T, D) and, if its ``forward`` has that parameter, a ``padding_mask`` (B, T).
        layer: Index of the stored layer to read.
        num_mixed: Number of stored layers, to read a learned weighted sum of all; 0: read ``layer``.

    Attributes:
        head: The head.
        layer_mix: The weighted sum, or None.
    """

    def __init__(self, head: nn.Module, layer: int = 0, num_mixed: int = 0) -> None:
        super().__init__()
        self.head, self.layer = head, layer
        self.layer_mix = LayerMix(num_mixed) if num_mixed else None
        self.takes_mask = "padding_mask" in inspect.signature(head.forward).parameters

    def forward(self, states: Sequence[Tensor], padding_mask: Tensor | None = None) -> Any:
        tokens = states[self.layer] if self.layer_mix is None else self.layer_mix(states)
        return self.head(tokens, padding_mask) if self.takes_mask else self.head(tokens)

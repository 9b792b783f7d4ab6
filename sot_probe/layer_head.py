"""A head on stored states: of one layer, a mix, a pair, or one below layers that are trained with the head."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sot_core.layer_mix import LayerMix
from sot_core.layer_pair import join_layers

__all__ = ["LayerHead"]


class LayerHead(nn.Module):
    """The module that is trained on stored states.

    Args:
        head: A module of tokens (B, T, D) and, if its ``forward`` has that parameter, a ``padding_mask`` (B, T).
        layer: Index of the stored layer to read.
        num_mixed: Number of stored layers, to read a learned weighted sum of all; 0: read ``layer``.
        top_layers: The layers of the encoder above the stored one, trained with the head: a module of the stored tokens
            and their padding mask that returns both for its own last layer; None: the head reads the stored states.
        pair: How to read two stored layers, see `sot_core.layer_pair`; None: ``layer`` or the mix.

    Attributes:
        head: The head.
        layer_mix: The weighted sum, or None.
        top_layers: The trained layers, or None.
        pair: How two layers are read, or None.
    """

    def __init__(
        self,
        head: nn.Module,
        layer: int = 0,
        num_mixed: int = 0,
        top_layers: nn.Module | None = None,
        pair: str | None = None,
    ) -> None:
        super().__init__()
        self.head, self.layer, self.top_layers, self.pair = head, layer, top_layers, pair
        self.layer_mix = LayerMix(num_mixed) if num_mixed else None
        self.takes_mask = "padding_mask" in inspect.signature(head.forward).parameters

    def forward(self, states: Sequence[Tensor], padding_mask: Tensor | None = None) -> Any:
        if self.pair is not None:
            tokens = join_layers(self.pair, *states)
        else:
            tokens = states[self.layer] if self.layer_mix is None else self.layer_mix(states)
        if self.top_layers is not None:
            tokens, padding_mask = self.top_layers(tokens, padding_mask)
        return self.head(tokens, padding_mask) if self.takes_mask else self.head(tokens)

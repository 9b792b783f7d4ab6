"""Two layers of an encoder for one head: its class token from the second, its words from the first or from both."""

from __future__ import annotations

import torch
from torch import Tensor

from sot_core.names import LAYER_PAIRS

__all__ = ["join_layers"]


def join_layers(pair: str, first: Tensor, second: Tensor) -> Tensor:
    """Join the tokens of two layers, class token at index 0.

    Args:
        pair: ``words_cls``: the words of the first layer and the class token of the second. ``x_y``: both layers side
            by side, for a head with ``two_layers``.
        first: Tokens of the first layer.
        second: Tokens of the second layer.

    Shape:
        (B, 1 + N, D) twice -> (B, 1 + N, D), for ``x_y`` (B, 1 + N, 2 D).

    Raises:
        ValueError: if the name is unknown.
    """
    if pair not in LAYER_PAIRS:
        raise ValueError(f"Unknown layer_pair {pair!r}, expected one of {list(LAYER_PAIRS)}")
    if pair == "x_y":
        return torch.cat((first, second), dim=-1)
    return torch.cat((second[:, :1], first[:, 1:]), dim=1)

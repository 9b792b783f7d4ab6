"""The classification head as fairseq's models hold it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sot_core import ClassificationHead, HeadConfig

__all__ = ["SentenceHead"]


class _StockShape(nn.Module):
    """Stands in where stock fairseq looks up a head's sizes (``<head>.<name>.weight`` and ``out_features``).

    Stock loading code reads ``dense.weight`` and ``out_proj.weight`` of every head in a checkpoint. A head without
    one of them saves an empty tensor of the right height under that name.
    """

    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features
        self.register_buffer("weight", torch.empty(out_features, 0))


class SentenceHead(ClassificationHead):
    """`ClassificationHead` under ``model.classification_heads[name]``, readable by stock fairseq code.

    The class token's part is RoBERTa's own pooler: dropout, ``dense``, activation, dropout, ``out_proj``.

    Args:
        config: The head; ``cls_pooler_dim`` must be set.
    """

    def __init__(self, config: HeadConfig) -> None:
        if config.cls_pooler_dim is None:
            raise ValueError("a sentence head needs cls_pooler_dim, got None")
        super().__init__(config)
        if not hasattr(self, "dense"):
            self.dense = _StockShape(config.cls_pooler_dim)
        if not hasattr(self, "out_proj"):
            self.out_proj = _StockShape(config.num_classes)

    def forward(
        self, features: Tensor, padding_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor | tuple[Tensor, ...]:
        """Logits of token features (B, T, D), class token first; ``padding_mask`` (B, T) is True at padding."""
        return super().forward(features, padding_mask)

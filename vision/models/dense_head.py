"""A classification head with a second classifier on every word token, as LV-ViT's token labeling trains it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sot_core import ClassificationHead, Contributions, HeadConfig
from sot_core.math.precision import no_autocast

__all__ = ["DENSE_WEIGHT", "DenseHead"]

DENSE_WEIGHT = 0.5  # of the words' largest logits, as published


class DenseHead(ClassificationHead):
    """`ClassificationHead` plus half the largest logit that one linear layer (``dense_fc``) gives any word token.

    Args:
        config: What the head is made of. Without classes there is no ``dense_fc``.

    Shape:
        As `ClassificationHead`. ``fusion="sum_loss"`` in training returns one more element, the words' part.

    Reference:
        arXiv:2104.10858.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        if config.num_classes > 0:
            self.dense_fc = nn.Linear(config.embed_dim, config.num_classes)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        logits = self.class_logits(tokens, padding_mask)
        if self.config.num_classes == 0:
            return logits
        extra = self._best_word(tokens, padding_mask)
        return (*logits, extra) if isinstance(logits, tuple) else logits + extra

    def class_logits(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        """What the head says without ``dense_fc``."""
        return super().forward(tokens, padding_mask)

    def dense_logits(self, tokens: Tensor) -> Tensor:
        """Logits of every word token.

        Shape:
            (B, 1 + N, D), or (B, N, D) without a class token -> (B, N, K).
        """
        return self.dense_fc(tokens[:, self._num_cls :])

    def contributions(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Contributions:
        """As `ClassificationHead.contributions`; what ``dense_fc`` says is the words'."""
        cls, word = super().contributions(tokens, padding_mask)
        return Contributions(cls, word + self._best_word(tokens, padding_mask))

    @torch.no_grad()
    def token_contributions(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """As `ClassificationHead.token_contributions`; ``dense_fc`` speaks for the word of the largest logit."""
        parts = super().token_contributions(tokens, padding_mask)
        if parts.shape[-1] == 1:
            return parts
        with no_autocast(tokens):
            dense = self.dense_logits(tokens.to(self.dense_fc.weight.dtype)).to(parts.dtype)
        bias = self.dense_fc.bias.to(parts.dtype)
        if padding_mask is not None:
            mask = padding_mask[:, self._num_cls :].unsqueeze(-1)
            dense = dense.masked_fill(mask, torch.finfo(dense.dtype).min)
            dense, bias = dense.masked_fill(mask.all(dim=1, keepdim=True), 0.0), bias * ~mask.all(dim=1)
        best, place = dense.transpose(1, 2).max(dim=-1, keepdim=True)  # (B, K, 1)
        parts[..., 0] += DENSE_WEIGHT * bias
        bias = bias.expand(best.shape[:2]).unsqueeze(-1)
        return parts.scatter_add_(-1, 1 + place, DENSE_WEIGHT * (best - bias))

    @property
    def _num_cls(self) -> int:
        return int(self.config.has_cls_token)

    def _best_word(self, tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
        """The weighted largest logit of the valid words, (B, K); 0 without any."""
        dense = self.dense_logits(tokens)
        if padding_mask is None:
            return DENSE_WEIGHT * dense.amax(dim=1)
        mask = padding_mask[:, self._num_cls :].unsqueeze(-1)
        best = dense.masked_fill(mask, torch.finfo(dense.dtype).min).amax(dim=1)
        return DENSE_WEIGHT * best.masked_fill(mask.all(dim=1), 0.0)

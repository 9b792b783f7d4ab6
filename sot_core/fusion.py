"""Fusions: how the class token and the pooled words become logits.

A fusion holds no parameters. It says which linear layers the head gets and how they combine; the head owns them under
the names ``cls_fc`` (or ``out_proj`` after a ``dense`` pooler) for the class token and ``word_fc`` for the words. A
part that a fusion does not use comes with width 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from sot_core.heads import ClassificationHead

__all__ = ["AggregateAll", "ClsOnly", "Concat", "Fusion", "SumLogits", "SumLosses", "WordsOnly"]


class Fusion:
    """Base of the fusions.

    Attributes:
        uses_cls: Whether the class token's own representation enters.
        uses_words: Whether the pooled tokens enter.
        pools_cls: Whether the class token is pooled together with the words.

    Shape:
        cls (B, C), words (B, P); logits and their parts (B, K).
    """

    uses_cls: ClassVar[bool] = True
    uses_words: ClassVar[bool] = True
    pools_cls: ClassVar[bool] = False

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        """Names and input widths of the head's linear classifiers."""
        raise NotImplementedError

    def logits(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The logits."""
        raise NotImplementedError

    def parts(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """What the class token and what the words add to the logits."""
        raise NotImplementedError

    def features(self, cls: Tensor, words: Tensor) -> Tensor:
        """The vector that a head without classes returns."""
        return words


class SumLogits(Fusion):
    """``cls_fc(cls) + word_fc(words)``, arXiv:2104.10935 equation 7."""

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        return {cls_layer: cls_dim, "word_fc": word_dim}

    def logits(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> Tensor | tuple[Tensor, ...]:
        cls_part, word_part = self.parts(head, cls, words)
        return cls_part + word_part

    def parts(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        return head.classify(head.cls_layer, cls), head.classify("word_fc", words)


class SumLosses(SumLogits):
    """Two classifiers, each with its own loss: a pair of logits in training, their sum at inference."""

    def logits(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.parts(head, cls, words) if head.training else super().logits(head, cls, words)


class Concat(Fusion):
    """One classifier on ``[cls, words]``, named ``word_fc``, or ``out_proj`` after a ``dense`` pooler."""

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        return {self._layer(cls_layer): cls_dim + word_dim}

    def logits(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> Tensor:
        return head.classify(self._layer(head.cls_layer), self.features(cls, words))

    def parts(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        layer = head.get_submodule(self._layer(head.cls_layer))
        for_cls, for_words = layer.get_parameter("weight").tensor_split([cls.shape[-1]], dim=-1)
        return F.linear(cls, for_cls, layer.get_parameter("bias")), F.linear(words, for_words)

    def features(self, cls: Tensor, words: Tensor) -> Tensor:
        return torch.cat((cls, words), dim=-1)

    @staticmethod
    def _layer(cls_layer: str) -> str:
        return "out_proj" if cls_layer == "out_proj" else "word_fc"


class WordsOnly(Fusion):
    """``word_fc(words)``; the only one for backbones without a class token."""

    uses_cls = False

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        return {"word_fc": word_dim}

    def logits(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> Tensor:
        return head.classify("word_fc", words)

    def parts(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(head, cls, words)
        return torch.zeros_like(logits), logits


class AggregateAll(WordsOnly):
    """``word_fc`` on the class token and the words pooled together; the logits do not split."""

    pools_cls = True


class ClsOnly(Fusion):
    """``cls_fc(cls)``: the usual head, the baseline."""

    uses_words = False

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        return {cls_layer: cls_dim}

    def logits(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> Tensor:
        return head.classify(head.cls_layer, cls)

    def parts(self, head: ClassificationHead, cls: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(head, cls, words)
        return logits, torch.zeros_like(logits)

    def features(self, cls: Tensor, words: Tensor) -> Tensor:
        return cls

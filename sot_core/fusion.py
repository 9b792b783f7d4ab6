"""Fusions: how the class token and the pooled words become logits.

A fusion holds no parameters. It says which linear layers the head gets and how they combine; the head owns them under
the names ``cls_fc`` (or ``out_proj`` after a ``dense`` pooler) for the class token and ``word_fc`` for the words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sot_core.heads import ClassificationHead

__all__ = ["AggregateAll", "ClsOnly", "Concat", "Fusion", "SumLogits", "SumLosses", "WordsOnly"]

Parts = tuple[Tensor | None, Tensor | None]


class Fusion:
    """Base of the fusions.

    Attributes:
        uses_cls: Whether the class token's own representation enters.
        uses_words: Whether the pooled tokens enter.
        pools_cls: Whether the class token is pooled together with the words.
    """

    uses_cls: ClassVar[bool] = True
    uses_words: ClassVar[bool] = True
    pools_cls: ClassVar[bool] = False

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        """Names and input widths of the head's linear classifiers."""
        raise NotImplementedError

    def features(self, cls: Tensor | None, words: Tensor | None) -> Tensor:
        """The vector a head without classes returns: the words, where they are used."""
        assert words is not None  # noqa: S101 - for the type checker
        return words

    def parts(self, head: ClassificationHead, cls: Tensor | None, words: Tensor | None) -> Parts:
        """The class token's and the words' part of the logits, (B, K) each; None for a part that does not exist."""
        raise NotImplementedError

    def logits(self, head: ClassificationHead, cls: Tensor | None, words: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        """The logits (B, K): the sum of the parts."""
        cls_part, word_part = self.parts(head, cls, words)
        if cls_part is None or word_part is None:
            (part,) = [part for part in (cls_part, word_part) if part is not None]
            return part
        return cls_part + word_part


class SumLogits(Fusion):
    """``cls_fc(cls) + word_fc(words)``, arXiv:2104.10935 equation 7."""

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        return {cls_layer: cls_dim, "word_fc": word_dim}

    def parts(self, head: ClassificationHead, cls: Tensor | None, words: Tensor | None) -> Parts:
        return head.classify(head.cls_layer, cls), head.classify("word_fc", words)


class SumLosses(SumLogits):
    """Two classifiers, each with its own loss: a pair of logits in training, their sum at inference."""

    def logits(self, head: ClassificationHead, cls: Tensor | None, words: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        if not head.training:
            return super().logits(head, cls, words)
        return head.classify(head.cls_layer, cls), head.classify("word_fc", words)


class Concat(Fusion):
    """One classifier on ``[cls, words]``, named ``word_fc``, or ``out_proj`` after a ``dense`` pooler."""

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        return {self._layer(cls_layer): cls_dim + word_dim}

    def features(self, cls: Tensor | None, words: Tensor | None) -> Tensor:
        assert cls is not None and words is not None  # noqa: S101, PT018 - for the type checker
        return torch.cat((cls, words), dim=-1)

    def logits(self, head: ClassificationHead, cls: Tensor | None, words: Tensor | None) -> Tensor:
        return head.classify(self._layer(head.cls_layer), self.features(cls, words))

    def parts(self, head: ClassificationHead, cls: Tensor | None, words: Tensor | None) -> Parts:
        assert cls is not None and words is not None  # noqa: S101, PT018 - for the type checker
        layer = head.get_submodule(self._layer(head.cls_layer))
        weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
        cls_part = torch.nn.functional.linear(cls, weight[:, : cls.shape[-1]], bias)
        return cls_part, torch.nn.functional.linear(words, weight[:, cls.shape[-1] :])

    @staticmethod
    def _layer(cls_layer: str) -> str:
        return "out_proj" if cls_layer == "out_proj" else "word_fc"


class WordsOnly(Fusion):
    """``word_fc(words)``; the only one for backbones without a class token."""

    uses_cls = False

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        return {"word_fc": word_dim}

    def parts(self, head: ClassificationHead, cls: Tensor | None, words: Tensor | None) -> Parts:
        return None, head.classify("word_fc", words)


class AggregateAll(WordsOnly):
    """``word_fc`` on the class token and the words pooled together; the logits do not split."""

    pools_cls = True


class ClsOnly(Fusion):
    """``cls_fc(cls)``: the usual head, the baseline."""

    uses_words = False

    def layer_sizes(self, cls_layer: str, cls_dim: int, word_dim: int) -> dict[str, int]:
        return {cls_layer: cls_dim}

    def features(self, cls: Tensor | None, words: Tensor | None) -> Tensor:
        assert cls is not None  # noqa: S101 - for the type checker
        return cls

    def parts(self, head: ClassificationHead, cls: Tensor | None, words: Tensor | None) -> Parts:
        return head.classify(head.cls_layer, cls), None

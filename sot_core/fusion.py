"""Fusions: how the class token's vector and the pooled words become logits.

The way is: the head gives each of its linear classifiers the vector that the fusion's :meth:`~Fusion.inputs` names for
it, and :meth:`~Fusion.combine` makes logits of what they say. A fusion has no parameters: checkpoints know the
classifiers by their names in the head, ``cls_fc`` (``out_proj`` after a ``dense`` pooler) and ``word_fc``, and whatever
replaces a head's layers, as quantisation does, need not know of the fusion. A vector that a fusion does not use has
width 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["AggregateAll", "ClsOnly", "Concat", "Fusion", "SumLogits", "SumLosses", "WordsOnly"]


class Fusion:
    """Base of the fusions.

    Args:
        cls_layer: Name of the class token's classifier.

    Attributes:
        uses_cls: Whether the class token's own vector enters.
        uses_words: Whether the pooled tokens enter.
        pools_cls: Whether the class token is pooled together with the words, so that the logits do not split.
        features_use_cls: Whether the class token's own vector is part of the features.

    Shape:
        cls (B, C), words (B, P); logits and their parts (B, K).
    """

    uses_cls: ClassVar[bool] = True
    uses_words: ClassVar[bool] = True
    pools_cls: ClassVar[bool] = False
    features_use_cls: ClassVar[bool] = False

    def __init__(self, cls_layer: str = "cls_fc") -> None:
        self.cls_layer = cls_layer

    def features(self, cls: Tensor, words: Tensor) -> Tensor:
        """The vector before the classifiers."""
        return words

    def inputs(self, cls: Tensor, words: Tensor) -> dict[str, Tensor]:
        """What each linear classifier reads, by its name."""
        raise NotImplementedError

    def combine(self, logits: Mapping[str, Tensor], training: bool) -> Tensor | tuple[Tensor, ...]:
        """The head's logits from those of each classifier."""
        (only,) = logits.values()
        return only

    def contributions(self, classifiers: Mapping[str, nn.Module], cls: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """What the class token and what the words add to the logits."""
        logits = {name: classifiers[name](vector) for name, vector in self.inputs(cls, words).items()}
        zero = torch.zeros_like(next(iter(logits.values())))
        return logits.get(self.cls_layer, zero), logits.get("word_fc", zero)

    def word_weight(self, classifiers: Mapping[str, nn.Module], num_words: int) -> Tensor:
        """The weight (K, P) that the pooled words of width P meet."""
        return classifiers["word_fc"].get_parameter("weight")


class SumLogits(Fusion):
    """``cls_fc(cls) + word_fc(words)``, arXiv:2104.10935 equation 7."""

    def inputs(self, cls: Tensor, words: Tensor) -> dict[str, Tensor]:
        return {self.cls_layer: cls, "word_fc": words}

    def combine(self, logits: Mapping[str, Tensor], training: bool) -> Tensor | tuple[Tensor, ...]:
        return logits[self.cls_layer] + logits["word_fc"]


class SumLosses(SumLogits):
    """Two classifiers, each with its own loss: a pair of logits in training, their sum at inference."""

    def combine(self, logits: Mapping[str, Tensor], training: bool) -> Tensor | tuple[Tensor, ...]:
        return (logits[self.cls_layer], logits["word_fc"]) if training else super().combine(logits, training)


class Concat(Fusion):
    """One classifier on ``[cls, words]``, named ``word_fc``, or ``out_proj`` after a ``dense`` pooler."""

    features_use_cls = True

    def features(self, cls: Tensor, words: Tensor) -> Tensor:
        return torch.cat((cls, words), dim=-1)

    def inputs(self, cls: Tensor, words: Tensor) -> dict[str, Tensor]:
        return {self._name: self.features(cls, words)}

    def contributions(self, classifiers: Mapping[str, nn.Module], cls: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = (classifiers[self._name].get_parameter(name) for name in ("weight", "bias"))
        for_cls, for_words = weight.tensor_split([cls.shape[-1]], dim=-1)
        return F.linear(cls, for_cls, bias), F.linear(words, for_words)

    def word_weight(self, classifiers: Mapping[str, nn.Module], num_words: int) -> Tensor:
        return classifiers[self._name].get_parameter("weight")[:, -num_words:]

    @property
    def _name(self) -> str:
        return "out_proj" if self.cls_layer == "out_proj" else "word_fc"


class WordsOnly(Fusion):
    """``word_fc(words)``; the only one for backbones without a class token."""

    uses_cls = False

    def inputs(self, cls: Tensor, words: Tensor) -> dict[str, Tensor]:
        return {"word_fc": words}


class AggregateAll(WordsOnly):
    """``word_fc`` on the class token and the words pooled together; the logits do not split."""

    pools_cls = True


class ClsOnly(Fusion):
    """``cls_fc(cls)``: the usual head, the baseline."""

    uses_words = False
    features_use_cls = True

    def features(self, cls: Tensor, words: Tensor) -> Tensor:
        return cls

    def inputs(self, cls: Tensor, words: Tensor) -> dict[str, Tensor]:
        return {self.cls_layer: cls}

"""The interface to text classifiers, implemented for fairseq and for Hugging Face."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sot_text.visualization.words import Span
from sot_visual.model_view import Inputs, ModelView

__all__ = ["EncodedText", "TextModel"]


@dataclass(frozen=True)
class EncodedText:
    """A tokenized text, or pair of texts.

    Attributes:
        texts: The texts.
        fields: Values of each token by name: first its index in the vocabulary, then its type if the model has types.
        spans: Position of each token in the texts; None for a special token.
    """

    texts: tuple[str, ...]
    fields: dict[str, list[int]]
    spans: list[Span | None]

    def keep(self, places: Sequence[int]) -> EncodedText:
        """The same text with only the tokens at ``places``."""
        fields = {name: [values[place] for place in places] for name, values in self.fields.items()}
        return replace(self, fields=fields, spans=[self.spans[place] for place in places])


class TextModel(ABC):
    """A text classifier.

    Attributes:
        module: The model, in evaluation mode, all of its parameters with gradients.
        labels: Names of the classes; empty for regression.
        multi_label: Whether a text may have several of them.
    """

    module: nn.Module
    labels: list[str]
    multi_label: bool

    @abstractmethod
    def encode(self, rows: Sequence[tuple[str, ...]]) -> list[EncodedText]:
        """Encode texts or pairs as in training.

        Raises:
            UsageError: for single texts where pairs are expected, or the reverse.
        """

    @abstractmethod
    def collate(self, encoded: Sequence[EncodedText]) -> Inputs:
        """A padded batch, the token indices (B, T) first."""

    @abstractmethod
    def view(self, module: nn.Module | None = None) -> ModelView:
        """A view of the model for the attribution methods; ``module`` replaces the model, for instance a copy of it."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probability of each class; for regression, the predicted number."""
        if not self.labels:
            return logits
        return logits.sigmoid() if self.multi_label else logits.softmax(dim=-1)

    def label(self, logits: Tensor) -> str:
        """The prediction as text, from the logits of one sample (K,)."""
        if not self.labels:
            return f"{logits[0].item():.3g}"
        if self.multi_label:
            return ", ".join(name for name, value in zip(self.labels, logits, strict=True) if value > 0) or "none"
        return self.labels[int(logits.argmax())]

    def logits(self, encoded: Sequence[EncodedText], batch_size: int) -> Tensor:
        """Logits (B, K) without gradients."""
        view, rows = self.view(), []
        with torch.no_grad():
            for start in range(0, len(encoded), batch_size):
                rows.append(view.logits(*self.collate(encoded[start : start + batch_size])).float().cpu())
        return torch.cat(rows)

"""Predictions from logits, and what a fine-tuned text classifier of either side offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from sot_base.errors import UsageError

__all__ = ["Prediction", "Predictor", "check_finite_logits", "predictions_from"]


class Prediction(NamedTuple):
    """What the model says of one text or pair.

    Attributes:
        label: Name of the most probable class; for regression the predicted number; of a model that gives several
            labels the names of all classes that are probable enough, in the model's order.
        probabilities: Probability of each class by its name; empty for regression.
    """

    label: str | float | tuple[str, ...]
    probabilities: dict[str, float]


class Predictor(Protocol):
    """A fine-tuned model with its tokenizer.

    Attributes:
        labels: Names of the classes in the order of the logits; empty for regression.
        num_inputs: 1 for single texts, 2 for pairs; None if unknown.
    """

    @property
    def labels(self) -> list[str]: ...

    @property
    def num_inputs(self) -> int | None: ...

    def predict(self, sentences: Sequence[tuple[str, ...]], batch_size: int, threshold: float) -> list[Prediction]:
        """Predict texts or pairs, in the order given."""


def predictions_from(
    logits: Tensor, labels: Sequence[str], multi_label: bool = False, threshold: float = 0.5
) -> list[Prediction]:
    """The predictions that logits stand for.

    Args:
        logits: One row for each text.
        labels: Names of the classes in the order of the logits; none for regression.
        multi_label: Whether a text may have several classes.
        threshold: Probability from which such a model gives a label.

    Shape:
        logits (rows, K), finite.
    """
    if not labels:
        return [Prediction(float(row[0]), {}) for row in logits]
    scores = logits.double()
    rows = (scores.sigmoid() if multi_label else scores.softmax(dim=-1)).tolist()
    if multi_label:
        chosen = [tuple(name for name, p in zip(labels, row, strict=True) if p >= threshold) for row in rows]
        return [Prediction(found, dict(zip(labels, row, strict=True))) for found, row in zip(chosen, rows, strict=True)]
    best = logits.argmax(dim=-1).tolist()
    return [
        Prediction(labels[place], dict(zip(labels, row, strict=True))) for place, row in zip(best, rows, strict=True)
    ]


def check_finite_logits(logits: Tensor, where: str, remedy: str) -> None:
    """Refuse logits (rows, K) that are not finite.

    Raises:
        UsageError: with the number of such rows, `where` and `remedy`.
    """
    wrong = int((~logits.isfinite()).any(dim=-1).sum())
    if wrong:
        raise UsageError(f"the outputs of {wrong} of {len(logits)} rows are not finite: {where}; {remedy}")

"""Classification metrics from per-class counts, which can be summed over batches; equal to scikit-learn's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean

import numpy as np

__all__ = ["CLASS_METRICS", "ClassCounts", "count_classes"]


@dataclass(frozen=True)
class ClassCounts:
    """How often each class is predicted, true, and both.

    Attributes:
        hits: For each of K classes, the rows where it is predicted and true.
        predicted: The rows where it is predicted.
        actual: The rows where it is true.
        correct: Rows whose prediction is right; for sets of classes, exact matches.
        rows: Number of rows.
        are_sets: Whether the targets are sets of classes (multi-label).
    """

    hits: Sequence[int]
    predicted: Sequence[int]
    actual: Sequence[int]
    correct: int
    rows: int
    are_sets: bool = False

    @classmethod
    def from_numbers(cls, numbers: Sequence[int], are_sets: bool) -> ClassCounts:
        """From 3K + 2 numbers: what :func:`count_classes` gives, or the sums of several."""
        classes = len(numbers) // 3
        hits, predicted, actual = (numbers[start : start + classes] for start in range(0, 3 * classes, classes))
        return cls(hits, predicted, actual, numbers[-2], numbers[-1], are_sets)

    @property
    def constant_predictions(self) -> bool:
        """Whether all rows have the same prediction."""
        return self._constant(self.predicted)

    @property
    def constant_targets(self) -> bool:
        """Whether all rows have the same target."""
        return self._constant(self.actual)

    def _constant(self, counts: Sequence[int]) -> bool:
        return all(count in (0, self.rows) for count in counts)

    @cached_property
    def f1_of_classes(self) -> list[float]:
        """F1 of each class; 0 for a class that is neither predicted nor true."""
        counts = zip(self.hits, self.predicted, self.actual, strict=True)
        return [2.0 * hits / max(predicted + actual, 1) for hits, predicted, actual in counts]


def count_classes(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> list[int]:
    """Count the classes of a batch or a whole data set; counts of batches add up (:meth:`ClassCounts.from_numbers`).

    Args:
        predictions: Class indices (rows,), or sets of classes (rows, K), bool.
        targets: The truth, of the same shape.
        num_classes: K; for class indices, at least 2 are counted.

    Returns:
        The numbers of a :class:`ClassCounts`: hits, predicted and actual rows of each class, correct rows, all rows.

    Raises:
        ValueError: If they are not class indices, as in regression, or outside of 0 to K - 1.
    """
    if predictions.ndim == 2:
        sums = [part.sum(axis=0).tolist() for part in (predictions & targets, predictions, targets)]
        return [*chain(*sums), int((predictions == targets).all(axis=1).sum()), len(targets)]
    if predictions.dtype.kind not in "iu" or targets.dtype.kind not in "iu":
        raise ValueError(f"need class indices, got {predictions.dtype} and {targets.dtype}")
    size = max(num_classes, 2)
    hits, predicted, actual = [0] * size, [0] * size, [0] * size  # for a batch, less than calls of numpy take
    for prediction, target in zip(predictions.tolist(), targets.tolist(), strict=True):
        if not (0 <= prediction < size and 0 <= target < size):
            raise ValueError(f"need classes from 0 to {size - 1}, got {prediction} for {target}")
        predicted[prediction] += 1
        actual[target] += 1
        hits[target] += prediction == target
    return [*hits, *predicted, *actual, sum(hits), len(targets)]


def accuracy(counts: ClassCounts) -> float:
    """Share of correct predictions; for sets of classes, of exact matches."""
    return counts.correct / counts.rows


def f1(counts: ClassCounts) -> float:
    """F1 of class 1 (the second label of the task); the mean over classes (macro) if there are more than two."""
    _need_one_class_a_row(counts)
    return counts.f1_of_classes[1] if len(counts.hits) == 2 else f1_macro(counts)


def f1_micro(counts: ClassCounts) -> float:
    """Micro-averaged F1, over all pairs of row and class."""
    return 2.0 * sum(counts.hits) / max(sum(counts.predicted) + sum(counts.actual), 1)


def f1_macro(counts: ClassCounts) -> float:
    """Macro-averaged F1; without sets of classes, over the classes that are predicted or true."""
    occurring = zip(counts.f1_of_classes, counts.predicted, counts.actual, strict=True)
    return fmean(value for value, *rows in occurring if counts.are_sets or any(rows))


def mcc(counts: ClassCounts) -> float:
    """Matthews correlation coefficient; 0 if the predictions or the targets are all the same.

    The generalisation to K classes of Gorodkin (Comput. Biol. Chem. 28, 2004).
    """
    _need_one_class_a_row(counts)
    predicted, actual, rows = counts.predicted, counts.actual, counts.rows
    spread = (rows**2 - _dot(predicted, predicted)) * (rows**2 - _dot(actual, actual))
    return (counts.correct * rows - _dot(predicted, actual)) / math.sqrt(spread) if spread else 0.0


def _dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def acc_and_f1(counts: ClassCounts) -> float:
    """Mean of accuracy and F1."""
    return (accuracy(counts) + f1(counts)) / 2


def _need_one_class_a_row(counts: ClassCounts) -> None:
    if counts.are_sets:
        raise ValueError("this metric needs one class a row, not sets of classes")


CLASS_METRICS: dict[str, Callable[[ClassCounts], float]] = {
    metric.__name__: metric for metric in (accuracy, f1, mcc, acc_and_f1, f1_micro, f1_macro)
}

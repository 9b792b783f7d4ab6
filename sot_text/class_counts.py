"""Classification metrics from per-class counts, which can be summed over batches; equal to scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

__all__ = ["CLASS_METRICS", "ClassCounts", "count_classes"]


@dataclass(frozen=True)
class ClassCounts:
    """How often each class is predicted, true, and both.

    Attributes:
        table: (3, K) int64: for each class, true positives, predicted positives and actual positives.
        correct: Rows whose prediction is right; for sets of classes, exact matches.
        rows: Number of rows.
        are_sets: Whether the targets are sets of classes (multi-label).
    """

    table: np.ndarray
    correct: int
    rows: int
    are_sets: bool = False

    def to_array(self) -> np.ndarray:
        """All counts as one vector (3K + 2,), int64, for sums and checkpoints."""
        array = np.empty(self.table.size + 2, dtype=np.int64)
        array[:-2], array[-2], array[-1] = self.table.ravel(), self.correct, self.rows
        return array

    @classmethod
    def from_array(cls, array: np.ndarray, are_sets: bool) -> ClassCounts:
        """The inverse of :meth:`to_array`."""
        return cls(array[:-2].reshape(3, -1), int(array[-2]), int(array[-1]), are_sets)

    @property
    def constant_predictions(self) -> bool:
        """Whether all rows have the same prediction."""
        return self._constant(self.table[1])

    @property
    def constant_targets(self) -> bool:
        """Whether all rows have the same target."""
        return self._constant(self.table[2])

    def _constant(self, counts: np.ndarray) -> bool:
        return bool(((counts == 0) | (counts == self.rows)).all())

    @cached_property
    def f1_of_classes(self) -> np.ndarray:
        """(K,) F1 of each class; 0 for a class that is neither predicted nor true."""
        values: np.ndarray = 2.0 * self.table[0] / np.maximum(self.table[1] + self.table[2], 1)
        return values


def count_classes(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> ClassCounts:
    """Count the classes of a batch or a whole data set.

    Args:
        predictions: Class indices (rows,), or sets of classes (rows, K), bool.
        targets: The truth, of the same shape.
        num_classes: K; for class indices, the table has at least 2 classes.

    Raises:
        ValueError: If they are not class indices, as in regression, or outside of 0 to K - 1.
    """
    if predictions.ndim == 2:
        table = np.stack([(predictions & targets).sum(axis=0), predictions.sum(axis=0), targets.sum(axis=0)])
        return ClassCounts(table, int((predictions == targets).all(axis=1).sum()), len(targets), are_sets=True)
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
    return ClassCounts(np.array([hits, predicted, actual]), sum(hits), len(targets))


def accuracy(counts: ClassCounts) -> float:
    """Share of correct predictions; for sets of classes, of exact matches."""
    return counts.correct / counts.rows


def f1(counts: ClassCounts) -> float:
    """F1 of class 1 (the second label of the task); the mean over classes (macro) if there are more than two."""
    _need_one_class_a_row(counts)
    return float(counts.f1_of_classes[1]) if counts.table.shape[1] == 2 else f1_macro(counts)


def f1_micro(counts: ClassCounts) -> float:
    """Micro-averaged F1, over all pairs of row and class."""
    hits, predicted, true = counts.table.sum(axis=1)
    return float(2.0 * hits / max(predicted + true, 1))


def f1_macro(counts: ClassCounts) -> float:
    """Macro-averaged F1; without sets of classes, over the classes that are predicted or true."""
    values = counts.f1_of_classes
    return float(np.mean(values if counts.are_sets else values[counts.table[1:].any(axis=0)]))


def mcc(counts: ClassCounts) -> float:
    """Matthews correlation coefficient; 0 if the predictions or the targets are all the same.

    The generalisation to K classes of Gorodkin (Comput. Biol. Chem. 28, 2004).
    """
    _need_one_class_a_row(counts)
    predicted, true = counts.table[1:].astype(np.float64)
    rows = float(counts.rows)
    spread = (rows**2 - predicted @ predicted) * (rows**2 - true @ true)
    return float((counts.correct * rows - predicted @ true) / np.sqrt(spread)) if spread else 0.0


def acc_and_f1(counts: ClassCounts) -> float:
    """Mean of accuracy and F1."""
    return (accuracy(counts) + f1(counts)) / 2


def _need_one_class_a_row(counts: ClassCounts) -> None:
    if counts.are_sets:
        raise ValueError("this metric needs one class a row, not sets of classes")


CLASS_METRICS: dict[str, Callable[[ClassCounts], float]] = {
    metric.__name__: metric for metric in (accuracy, f1, mcc, acc_and_f1, f1_micro, f1_macro)
}

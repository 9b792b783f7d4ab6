"""Metrics of the ``probe`` commands for text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sot_text.metrics import compute_metrics, constant_values, value_name

__all__ = ["ProbeMetrics"]


class ProbeMetrics:
    """The metrics of a task, in percent.

    Args:
        names: Names in `sot_text.metrics`.
        num_classes: Number of classes; 1 for regression.
        labels: Names of the classes.
    """

    def __init__(self, names: Sequence[str], num_classes: int, labels: Sequence[str]) -> None:
        self.names, self.num_classes, self.labels = tuple(names), num_classes, labels

    def measure(self, predictions: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """The metrics of a whole split."""
        values = compute_metrics(self.names, predictions, targets, self.num_classes, warn=False)
        return {name: 100.0 * value for name, value in values.items()}

    def warnings(self, predictions: np.ndarray, targets: np.ndarray, where: str) -> list[str]:
        """Warn of constant predictions, see :func:`sot_text.metrics.constant_values`."""
        first = (value_name(predictions[0], self.labels), value_name(targets[0], self.labels))
        return constant_values(predictions, targets, first, where)

"""Metrics over a whole data set, by scikit-learn and scipy; all are fractions (1.0 is best), not percent.

Predictions and targets are class indices (rows,), numbers (rows,), or sets of classes (rows, K), bool, where a row may
have several labels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from sot_base.errors import UsageError
from sot_base.names import join_names

__all__ = ["METRICS", "check_metrics", "compute_metrics", "constant_values", "value_name"]

logger = logging.getLogger(__name__)


Metric = Callable[[np.ndarray, np.ndarray, int], float]  # predictions, targets, number of classes


def accuracy(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """Share of correct predictions; a set of classes counts as correct if all of it is."""
    return float(accuracy_score(targets, predictions))


def f1(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """F1 of class 1 (the second label of the task); the mean over classes (macro) if there are more than two."""
    average = "binary" if num_classes <= 2 else "macro"
    return float(f1_score(targets, predictions, average=average, zero_division=0.0))


def f1_micro(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """F1 over all decisions: one for each row and class."""
    return float(f1_score(targets, predictions, average="micro", zero_division=0.0))


def f1_macro(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """Mean of the classes' F1."""
    return float(f1_score(targets, predictions, average="macro", zero_division=0.0))


def mcc(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """Matthews correlation coefficient; 0 if the predictions or the targets are all the same."""
    if _constant(predictions) or _constant(targets):
        return 0.0
    return float(matthews_corrcoef(targets, predictions))


def acc_and_f1(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """Mean of accuracy and F1."""
    return (accuracy(predictions, targets, num_classes) + f1(predictions, targets, num_classes)) / 2


def pearson(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """Pearson's correlation; 0 if the predictions or the targets are all the same."""
    return _correlation(stats.pearsonr, predictions, targets)


def spearman(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """Spearman's rank correlation; 0 if the predictions or the targets are all the same."""
    return _correlation(stats.spearmanr, predictions, targets)


def pearson_and_spearman(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """Mean of both correlations."""
    return (pearson(predictions, targets, num_classes) + spearman(predictions, targets, num_classes)) / 2


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (accuracy, f1, mcc, acc_and_f1, f1_micro, f1_macro, pearson, spearman, pearson_and_spearman)
}


def _correlation(function: Callable[..., Any], predictions: np.ndarray, targets: np.ndarray) -> float:
    """Correlate in float64; 0 where it is not defined, as for a single sample or constant values."""
    if _constant(predictions) or _constant(targets):
        return 0.0
    value = float(function(predictions.astype(np.float64), targets.astype(np.float64)).statistic)
    return value if np.isfinite(value) else 0.0  # nearly constant values, whose variance is rounded to 0


def _constant(values: np.ndarray) -> bool:
    return bool((values == values[0]).all())


def constant_values(
    predictions: np.ndarray, targets: np.ndarray, first: tuple[str, str] | None = None, where: str = ""
) -> list[str]:
    """Describe what metrics hide: targets or predictions that are all the same, as those of a collapsed model.

    Numbers predicted for different targets count as the same within a thousandth of the targets' range. One sample
    tells nothing.

    Args:
        predictions: As for :func:`compute_metrics`.
        targets: As for :func:`compute_metrics`.
        first: What to call the first prediction and the first target (:func:`value_name`); None: by their values.
        where: What data and what model these are.
    """
    if len(targets) < 2:
        return []
    of, messages = f" of {where}" if where else "", []
    predicted, true = first or (value_name(predictions[0]), value_name(targets[0]))
    if _constant(targets):
        messages.append(f"all {len(targets)} targets{of} are {true}: correlations and mcc are 0 by definition")
    is_number = targets.dtype.kind == "f"
    collapsed = bool(np.ptp(predictions) <= 1e-3 * np.ptp(targets)) if is_number else False
    if _constant(predictions) or collapsed:
        message = f"all {len(predictions)} predictions{of} are {predicted}: correlations and mcc are 0 by definition"
        if not _constant(targets):
            share = (targets == predictions[0]).reshape(len(targets), -1).all(axis=1).mean()
            right = "" if is_number else f", as are {share:.0%} of the targets"
            message = (
                f"all {len(predictions)} predictions{of} are {predicted}{right}: the model has collapsed; if "
                "this persists after a few epochs, lower the learning rate, warm up longer, or try another seed"
            )
        messages.append(message)
    return messages


def value_name(value: np.ndarray | np.generic, labels: Sequence[str] = ()) -> str:
    """How messages name a prediction or target: the class, the set of classes, or the number."""
    if np.ndim(value):
        names = [labels[index] if labels else str(index) for index in np.flatnonzero(value).tolist()]
        return repr(join_names(names)) if names else "without any label"
    return repr(labels[int(value)]) if labels else f"{value:.4g}"


def check_metrics(names: Iterable[str]) -> tuple[str, ...]:
    """Check that all names are metrics, before a run instead of after its first epoch.

    Raises:
        UsageError: If one is not; the message names those there are.
    """
    names = tuple(names)
    for name in names:
        if name not in METRICS:
            raise UsageError(f"no such metric: {name!r}; use one of {', '.join(METRICS)}")
    return names


def compute_metrics(
    names: Sequence[str],
    predictions: ArrayLike,
    targets: ArrayLike,
    num_classes: int | None = None,
    labels: Sequence[str] = (),
    where: str = "",
    warn: bool = True,
) -> dict[str, float]:
    """Compute metrics over a whole data set.

    A metric that is not defined because the predictions or the targets are all the same is 0, with a warning
    (:func:`constant_values`).

    Args:
        names: Keys of :data:`METRICS`.
        predictions: Class indices, numbers in regression, or sets of classes, one for each sample.
        targets: The truth, in the same order.
        num_classes: Number of classes (F1 is of class 1 for two, macro for more); by default as many as occur.
        labels: Names of the classes by their index, for the warning; none in regression.
        where: What data and model these are, for the warning (``split 'valid', head mgcrp, seed 1``).
        warn: Whether to warn; not of a part of a data set.

    Returns:
        For each name a Python float, a fraction.

    Raises:
        UsageError: If a name is unknown.
        ValueError: If there are no samples, the lengths differ, or a value is not finite.

    Example:
        >>> compute_metrics(["accuracy"], predictions=[0, 1, 1, 1], targets=[0, 1, 0, 1])
        {'accuracy': 0.75}
    """
    names = check_metrics(names)
    predictions, targets = np.asarray(predictions), np.asarray(targets)
    are_sets = predictions.ndim == 2 and predictions.dtype == targets.dtype == bool
    if not (predictions.ndim == 1 or are_sets) or predictions.shape != targets.shape or not len(predictions):
        raise ValueError(f"need one prediction and target per sample, got shapes {predictions.shape}, {targets.shape}")
    for what, values in (("predictions", predictions), ("targets", targets)):
        if not np.isfinite(values).all():
            raise ValueError(f"{np.count_nonzero(~np.isfinite(values))} of {len(values)} {what} are not finite")
    if warn:
        first = (value_name(predictions[0], labels), value_name(targets[0], labels))
        for message in constant_values(predictions, targets, first, where):
            logger.warning(message)
    if num_classes is None:
        num_classes = int(max(predictions.max(), targets.max())) + 1
    return {name: METRICS[name](predictions, targets, num_classes) for name in names}

"""Metrics over a whole data set; all are fractions (1.0 is best), not percent.

Predictions and targets are class indices (rows,), numbers (rows,), or sets of classes (rows, K), bool, where a row may
have several labels. Metrics of classes are computed from counts (:mod:`sot_text.class_counts`), correlations by scipy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sot_base.errors import UsageError
from sot_base.names import join_names
from sot_text.class_counts import CLASS_METRICS, ClassCounts, count_classes

__all__ = ["METRICS", "check_metrics", "compute_metrics", "constant_classes", "constant_values", "value_name"]

logger = logging.getLogger(__name__)


def pearson(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Pearson's correlation; 0 if the predictions or the targets are all the same."""
    from scipy.stats import pearsonr  # here: only regressions need scipy, which takes a second to import

    return _correlation(pearsonr, predictions, targets)


def spearman(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Spearman's rank correlation; 0 if the predictions or the targets are all the same."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, targets)


def pearson_and_spearman(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean of both correlations."""
    return (pearson(predictions, targets) + spearman(predictions, targets)) / 2


CORRELATIONS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    metric.__name__: metric for metric in (pearson, spearman, pearson_and_spearman)
}
METRICS = (*CLASS_METRICS, *CORRELATIONS)


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
    is_number = targets.dtype.kind == "f"
    collapsed = _constant(predictions) or (is_number and bool(np.ptp(predictions) <= 1e-3 * np.ptp(targets)))
    share = None
    if not is_number:
        share = (targets == predictions[0]).reshape(len(targets), -1).all(axis=1).mean()
    names = first or (value_name(predictions[0]), value_name(targets[0]))
    return _describe(len(targets), collapsed, _constant(targets), names, share, where)


def constant_classes(counts: ClassCounts, first: tuple[str, str], where: str = "") -> list[str]:
    """As :func:`constant_values`, from counts of classes."""
    share = counts.correct / counts.rows  # of a constant prediction: the share of its class
    return _describe(counts.rows, counts.constant_predictions, counts.constant_targets, first, share, where)


def _describe(
    rows: int,
    constant_predictions: bool,
    constant_targets: bool,
    names: tuple[str, str],
    share: float | None,
    where: str,
) -> list[str]:
    """The messages: ``names`` are of prediction and target, ``share`` is of the targets that are as predicted."""
    if rows < 2:
        return []
    of, messages = f" of {where}" if where else "", []
    predicted, true = names
    if constant_targets:
        messages.append(f"all {rows} targets{of} are {true}: correlations and mcc are 0 by definition")
    if constant_predictions:
        message = f"all {rows} predictions{of} are {predicted}: correlations and mcc are 0 by definition"
        if not constant_targets:
            right = "" if share is None else f", as are {share:.0%} of the targets"
            message = (
                f"all {rows} predictions{of} are {predicted}{right}: the model has collapsed; if "
                "this persists after a few epochs, lower the learning rate, warm up longer, or try another seed"
            )
        messages.append(message)
    return messages


def value_name(value: np.ndarray | np.generic, labels: Sequence[str] = ()) -> str:
    """How messages name a prediction or target: the class, the set of classes, or the number."""
    if isinstance(value, np.ndarray):
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
    if set(names) & CLASS_METRICS.keys():
        counts = ClassCounts.from_numbers(count_classes(predictions, targets, num_classes), are_sets)
    return {
        name: CORRELATIONS[name](predictions, targets) if name in CORRELATIONS else CLASS_METRICS[name](counts)
        for name in names
    }

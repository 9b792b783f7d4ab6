"""Rows, labels and parameters as a user gives them to a classifier with scikit-learn's interface."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils.multiclass import type_of_target

from sot_base.errors import UsageError

__all__ = ["as_labels", "as_rows", "check_positive", "weights_by_label"]


def as_rows(X: Any) -> list[Any]:
    """Rows as a list.

    Raises:
        UsageError: for a single one, such as a string, which would be taken for its letters.
    """
    if isinstance(X, str | bytes) or not isinstance(X, Iterable):
        raise UsageError(f"one {type(X).__name__} where rows are expected: X; give a list of them")
    return list(X)


def as_labels(y: Any) -> tuple[np.ndarray, str]:
    """Labels (rows,), or for several labels a row (rows, K), and scikit-learn's name of their kind.

    Raises:
        UsageError: for anything that does not name classes.
    """
    try:
        labels = np.asarray(y)
        if labels.dtype == object and all(isinstance(label, str) for label in labels.ravel()):
            labels = labels.astype(str)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        kind = str(type_of_target(labels)) if labels.ndim and len(labels) else "empty"
    except ValueError as error:
        raise UsageError(
            f"no labels of classes ({error}): fit; give a list of labels, or 0 and 1 for each class"
        ) from None
    if kind not in ("binary", "multiclass", "multilabel-indicator"):
        what = f"labels of {labels.ndim} dimensions, {kind}"
        raise UsageError(f"{what}: fit; give a list of labels, or 0 and 1 for each class")
    return labels, kind


def check_positive(name: str, value: Any, whole: bool, owner: str) -> None:
    """Make sure that a parameter is None or a positive number.

    Raises:
        UsageError: naming it and its owner.
    """
    is_number = isinstance(value, Integral if whole else Real)
    if value is not None and not (is_number and 0 < value < float("inf")):
        kind = "a positive whole number" if whole else "positive"
        raise UsageError(f"{name} must be {kind}, got {value!r}: {owner}; correct it")


def weights_by_label(given: Any, labels: Sequence[Any]) -> list[float]:
    """Weights of the classes in their order, from a dictionary of label and weight; the others have 1.

    Raises:
        UsageError: for another type, a label that is none, or a weight that is not positive.
    """
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise UsageError(f"a {kind}: class_weight; give 'balanced', or a dictionary of label and weight")
    unknown = [label for label in given if label not in labels]
    if unknown:
        raise UsageError(f"no such class: class_weight {unknown[0]!r}; the classes are {list(labels)}")
    for label, weight in given.items():
        check_positive("a weight", math.nan if weight is None else weight, False, f"class_weight {label!r}")
    return [float(given.get(label, 1.0)) for label in labels]

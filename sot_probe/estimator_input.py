"""Rows and labels as a user gives them to a classifier with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.utils.multiclass import type_of_target

from sot_base.errors import UsageError

__all__ = ["as_labels", "as_rows"]


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

"""Rows, labels and parameters as a user gives them to a classifier with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils.multiclass import type_of_target

from sot_base.errors import UsageError
from sot_core.names import LAYER_PAIRS

__all__ = [
    "as_labels",
    "as_layers",
    "as_rows",
    "check_layer_pair",
    "check_positive",
    "draw_seed",
    "weights_by_label",
]


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


def as_layers(layers: Any) -> tuple[int, ...]:
    """One layer, or several, as a tuple.

    Raises:
        UsageError: if they are not whole numbers.
    """
    found = tuple(layers) if isinstance(layers, list | tuple) else (layers,)
    if not found or not all(isinstance(layer, Integral) for layer in found):
        raise UsageError(f"not a layer or a list of layers: layers {layers!r}; give whole numbers, such as -1")
    return tuple(int(layer) for layer in found)


def check_layer_pair(layer_pair: Any, layers: Any, owner: str) -> None:
    """Check how two layers are read.

    Raises:
        UsageError: for another name, or another number of layers than two.
    """
    if layer_pair not in LAYER_PAIRS:
        raise UsageError(f"no such pair: {owner}(layer_pair={layer_pair!r}); give one of {', '.join(LAYER_PAIRS)}")
    if len(as_layers(layers)) != 2:
        raise UsageError(f"layer_pair needs two layers: {owner}(layers={layers!r}); give two, such as [3, -1]")


def draw_seed(random_state: Any) -> int:
    """A seed from a number, one of numpy's generators, or None for a random one.

    Raises:
        UsageError: for anything else.
    """
    try:
        return int(np.random.default_rng(random_state).integers(2**31))
    except (TypeError, ValueError) as error:
        raise UsageError(f"not a seed ({error}): random_state {random_state!r}; give a number from 0") from None


def check_positive(name: str, value: Any, whole: bool, owner: str, none: bool = True, zero: bool = False) -> None:
    """Make sure that a parameter is a positive number.

    Args:
        name: Its name.
        value: Its value.
        whole: Whether it must be a whole number.
        owner: What it is a parameter of.
        none: Whether None will do.
        zero: Whether 0 will do.

    Raises:
        UsageError: naming it and its owner.
    """
    if value is None and none:
        return
    is_number = isinstance(value, Integral if whole else Real) and 0.0 <= float(value) < float("inf")
    if not is_number or (value == 0 and not zero):
        kind = "a positive whole number" if whole else "0 or more" if zero else "positive"
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
        check_positive("a weight", weight, whole=False, owner=f"class_weight {label!r}", none=False)
    return [float(given.get(label, 1.0)) for label in labels]

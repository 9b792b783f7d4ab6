"""Weights of classes in the loss: ``--class-weights``, read and computed alike on every side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sot_base.errors import UsageError
from sot_base.names import name_key, show, split_names

__all__ = ["BALANCED", "class_weights", "parse_class_weights"]

BALANCED = "balanced"
FORM = "write balanced, or NAME=WEIGHT,NAME=WEIGHT with positive numbers"


def parse_class_weights(text: str, option: str = "--class-weights") -> dict[str, float] | None:
    """Read ``balanced`` (None) or ``NAME=WEIGHT,...``; a name with a comma is quoted, ``"yes, really"=4``.

    Raises:
        UsageError: If the text has another form, a weight is not positive, or a name is repeated.
    """
    if text.strip() == BALANCED:
        return None
    weights: dict[str, float] = {}
    for item in split_names(text, option):
        name, equals, value = (part.strip() for part in item.rpartition("="))
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if not (name and equals and 0 < weight < math.inf):
            raise UsageError(f"{item!r} is not a class weight: {option} {text}; {FORM}")
        if name in weights:
            raise UsageError(f"{name!r} is repeated: {option} {text}; {FORM}")
        weights[name] = weight
    return weights


def class_weights(
    text: str,
    labels: Sequence[str],
    counts: Sequence[int],
    rows: int,
    multi_label: bool = False,
    option: str = "--class-weights",
    unit: str = "row",
) -> np.ndarray:
    """Weights of the classes in their order.

    ``balanced`` gives every class the same sum of weights: ``rows / (K * count)``, as scikit-learn's
    ``compute_class_weight``. With several labels a row, a weight is that of the rows that have the label
    (``pos_weight`` of torch's ``BCEWithLogitsLoss``), and ``balanced`` is ``(rows - count) / count``. A class that is
    not named has the weight 1.

    Args:
        text: The option's value.
        labels: The classes' names.
        counts: For each class the training rows that have it.
        rows: Number of training rows.
        multi_label: Whether a row may have several labels, or none.
        option: What error messages call the option.
        unit: What they call a row: an image, a pixel.

    Shape:
        float64, (K,).

    Raises:
        UsageError: As :func:`parse_class_weights`; for a name that is not a class; for ``balanced`` if a class has no
            training row, or with several labels a row if a class has them all.

    Example:
        >>> class_weights("balanced", ["bad", "good"], counts=[1, 3], rows=4).tolist()
        [2.0, 0.6666666666666666]
        >>> class_weights("bad=4", ["bad", "good"], counts=[1, 3], rows=4).tolist()
        [4.0, 1.0]
    """
    named = parse_class_weights(text, option)
    if named is not None:
        index = {label: number for number, label in enumerate(labels)}
        loose = {name_key(label): number for label, number in index.items()}
        weights = np.ones(len(labels))
        for name, weight in named.items():
            found = index.get(name, loose.get(name_key(name)))
            if found is None:
                raise UsageError(f"no such class: {option} {show(name)}; the classes are {', '.join(labels)}")
            weights[found] = weight
        return weights
    counted = np.asarray(counts, dtype=np.float64)
    others = rows - counted if multi_label else np.full(len(counted), rows / len(counted))
    for number in np.flatnonzero((counted == 0) | (others == 0)).tolist():
        how_many = f"no training {unit} has" if counted[number] == 0 else f"all training {unit}s have"
        raise UsageError(f"{how_many} the label {show(labels[number])}: {option} {BALANCED}; give weights by name")
    return others / counted

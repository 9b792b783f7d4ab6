"""Labels as they stand in files, turned into class indices or numbers."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import repeat

import numpy as np

from sot_base.errors import UsageError
from sot_text.formats.dictionary import MASK, SPECIALS
from sot_text.tsv import TsvTable

__all__ = ["check_labels", "class_indices", "labels_of", "regression_targets"]

logger = logging.getLogger(__name__)


def labels_of(table: TsvTable, column: str) -> tuple[str, ...]:
    """The different labels of a column, sorted: as numbers if all are whole numbers, else as text.

    The order does not depend on how often or where a label occurs.
    """
    cells = [cell.strip() for cell in table.columns[column]]
    if "" in cells:
        raise UsageError(f"no label: {table.where(cells.index(''), column)}; give each sample a label")
    labels = sorted(set(cells))
    with contextlib.suppress(ValueError):
        labels.sort(key=int)
    return check_labels(labels, f"{table.path}, column {column!r}")


def check_labels(labels: Sequence[str], where: str) -> tuple[str, ...]:
    """Give the class names back if they can be some.

    Raises:
        UsageError: If there are fewer than two, one is empty or repeated, or fairseq's dictionary cannot hold it.
    """
    if len(labels) < 2:
        raise UsageError(f"fewer than two labels ({', '.join(labels)}): {where}; a classification needs two")
    for label in labels:
        if label != label.strip() or not label or "\r" in label or "\n" in label:
            raise UsageError(f"{label!r} is no label: {where}; give each sample a label without blanks around it")
        if label in (*SPECIALS, MASK) or re.fullmatch(r"madeupword\d{4}", label):  # fairseq's fillers
            raise UsageError(f"fairseq keeps {label!r} for itself: {where}; rename the label")
        if labels.count(label) > 1:
            raise UsageError(f"{label!r} is repeated: {where}; name each label once")
    folded = {label.casefold(): label for label in labels}
    if len(folded) < len(labels):
        logger.warning("labels that differ in upper and lower case only are different classes: %s", where)
    return tuple(labels)


def class_indices(table: TsvTable, column: str, labels: Sequence[str]) -> np.ndarray:
    """Class indices of a column, by name: upper and lower case do not matter where that leaves no doubt.

    Raises:
        UsageError: If a cell is none of `labels`; the message names file, line and value.
    """
    exact = {label: number for number, label in enumerate(labels)}
    folded = Counter(label.casefold() for label in labels)
    loose = {label.casefold(): number for label, number in exact.items() if folded[label.casefold()] == 1}
    cells = table.columns[column]
    indices = np.fromiter(map(exact.get, cells, repeat(-1)), np.int64, len(cells))
    for row in np.flatnonzero(indices < 0).tolist():
        name = cells[row].strip()
        indices[row] = found = exact.get(name, loose.get(name.casefold(), -1))
        if found < 0:
            known = ", ".join(labels[:20]) + (", ..." if len(labels) > 20 else "")
            raise UsageError(f"unknown label {cells[row]!r}: {table.where(row, column)}; use one of {known}")
    return indices


def regression_targets(table: TsvTable, column: str, label_range: tuple[float, float] | None = None) -> np.ndarray:
    """Numbers of a column, as they are in the file.

    Args:
        table: The rows.
        column: Name of the column.
        label_range: Smallest and largest number allowed; None for any.

    Raises:
        UsageError: If a cell is no finite number or outside the range; the message names file, line and value.
    """
    low, high = label_range or (-math.inf, math.inf)
    targets = np.empty(len(table), dtype=np.float64)
    for row, cell in enumerate(table.columns[column]):
        try:
            number = float(cell.replace("_", "?"))  # Python reads 1_0 as ten
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UsageError(f"{cell!r} is no number: {table.where(row, column)}; write it like 3.5")
        if not low <= number <= high:
            raise UsageError(f"{cell} is not between {low:g} and {high:g}: {table.where(row, column)}; correct it")
        targets[row] = number
    return targets

"""Labels as they stand in files, turned into class indices, sets of classes or numbers."""

from __future__ import annotations

import logging
import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import repeat

import numpy as np

from sot_base.errors import UsageError
from sot_base.names import name_key, show, split_names, visible
from sot_text.formats.class_names import check_labels
from sot_text.tsv import TsvTable

__all__ = [
    "class_indices",
    "class_sets",
    "finite_number",
    "labels_of",
    "parse_labels",
    "regression_targets",
]

logger = logging.getLogger(__name__)


def labels_of(table: TsvTable, column: str, multi_label: bool = False) -> tuple[str, ...]:
    """The different labels of a column, composed (NFC) and sorted: as numbers if all are numbers, else as text.

    The order does not depend on how often or where a label occurs.

    Args:
        table: The rows.
        column: Name of the column.
        multi_label: Whether a cell is a list of labels (:func:`sot_base.names.split_names`), possibly empty.

    Raises:
        UsageError: If a row has no label, two labels look the same, or the labels are numbers with fractions.
    """
    cells = [cell.strip() for cell in table.columns[column]]
    if not multi_label and "" in cells:
        raise UsageError(f"no label: {table.where(cells.index(''), column)}; give each sample a label")
    first_row: dict[str, int] = {}
    for row, cell in enumerate(cells):
        for name in _names(cell, table, row, column) if multi_label else (cell,):
            first_row.setdefault(unicodedata.normalize("NFC", name), row)
    _check_look_alikes(first_row, table, column)
    where = f"{table.path}, column {column!r}"
    if not multi_label:
        _ask_for_regression(list(first_row), where)
    labels = sorted(first_row)
    if all(finite_number(label) is not None for label in labels):
        labels.sort(key=float)
    return check_labels(labels, where)


def parse_labels(text: str, option: str = "--labels") -> tuple[str, ...]:
    """Class names from a command line (:func:`sot_base.names.split_names`), in their order.

    Raises:
        UsageError: As :func:`check_labels`.
    """
    return check_labels(split_names(text, option), option)


def class_indices(table: TsvTable, column: str, labels: Sequence[str]) -> np.ndarray:
    """Class indices of a column, by name: neither composed or decomposed letters matter, nor case if unambiguous.

    Raises:
        UsageError: If a cell is none of `labels`; the message names file, line and value.
    """
    lookup = _Lookup(labels)
    cells = table.columns[column]
    indices = np.fromiter(map(lookup.exact.get, cells, repeat(-1)), np.int64, len(cells))
    for row in np.flatnonzero(indices < 0).tolist():
        indices[row] = lookup.find(cells[row].strip(), table, row, column)
    return indices


def class_sets(table: TsvTable, column: str, labels: Sequence[str]) -> np.ndarray:
    """Which classes each row has, where a cell is a list of labels (multi-label); an empty cell has none.

    Shape:
        bool, (rows, K).

    Raises:
        UsageError: If a cell has a name that is none of `labels`; the message names file, line and value.
    """
    lookup = _Lookup(labels)
    sets = np.zeros((len(table), len(labels)), dtype=bool)
    for row, cell in enumerate(table.columns[column]):
        for name in _names(cell, table, row, column):
            sets[row, lookup.find(name, table, row, column)] = True
    return sets


def regression_targets(table: TsvTable, column: str, label_range: tuple[float, float] | None = None) -> np.ndarray:
    """Numbers of a column, as they are in the file.

    Args:
        table: The rows.
        column: Name of the column.
        label_range: Smallest and largest number allowed; None for any.

    Raises:
        UsageError: If a cell is not a finite number or outside the range; the message names file, line and value.
    """
    low, high = label_range or (-math.inf, math.inf)
    targets = np.empty(len(table), dtype=np.float64)
    for row, cell in enumerate(table.columns[column]):
        number = finite_number(cell)
        if number is None:
            raise UsageError(f"{cell!r} is not a number: {table.where(row, column)}; write it like 3.5")
        if not low <= number <= high:
            raise UsageError(f"{cell} is not between {low:g} and {high:g}: {table.where(row, column)}; correct it")
        targets[row] = number
    return targets


class _Lookup:
    """Class indices by name, and the error for a name that is none."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels
        self.exact = {label: number for number, label in enumerate(labels)}
        self._composed = {unicodedata.normalize("NFC", label): number for label, number in self.exact.items()}
        shared = Counter(map(name_key, labels))
        self._loose = {name_key(label): number for label, number in self.exact.items() if shared[name_key(label)] == 1}

    def find(self, name: str, table: TsvTable, row: int, column: str) -> int:
        """The index of a name in a cell."""
        found = self._composed.get(unicodedata.normalize("NFC", name), self._loose.get(name_key(name)))
        if found is not None:
            return found
        twin = next((label for label in self.labels if name and visible(label) == visible(name)), None)
        if twin is not None:
            remedy = f"it looks like {show(twin)}: remove the invisible characters"
        else:
            known = ", ".join(self.labels[:20]) + (", ..." if len(self.labels) > 20 else "")
            remedy = f"use one of {known}"
        raise UsageError(f"unknown label {show(name)}: {table.where(row, column)}; {remedy}")


def _names(cell: str, table: TsvTable, row: int, column: str) -> list[str]:
    """The labels that a cell lists."""
    names = split_names(cell, table.where(row, column)) if cell.strip() else []
    if "" in names:
        raise UsageError(f"an empty name in {cell!r}: {table.where(row, column)}; write a,b or leave the cell empty")
    return names


def _check_look_alikes(first_row: dict[str, int], table: TsvTable, column: str) -> None:
    """Refuse two labels that differ only in characters without a glyph."""
    seen: dict[str, str] = {}
    for name, row in first_row.items():
        twin = seen.setdefault(visible(name), name)
        if twin != name:
            raise UsageError(
                f"{show(name)} looks like {show(twin)} and is another label: {table.where(row, column)}; "
                "remove the invisible characters"
            )


def _ask_for_regression(labels: list[str], where: str) -> None:
    """Labels like 0.25 and 3.5 are scores rather than names of classes."""
    numbers = [number for number in map(finite_number, labels) if number is not None]
    if len(numbers) < len(labels) or all(label.lstrip("+-").isdecimal() for label in labels):
        return
    low, high = min(numbers), max(numbers)
    if any(not number.is_integer() for number in numbers):
        raise UsageError(
            f"the {len(labels)} labels are numbers from {low:g} to {high:g}: {where}; did you mean --regression? "
            "If they are names of classes, list them with --labels"
        )
    logger.warning(
        "%d classes are named by numbers from %g to %g: %s; did you mean --regression?", len(labels), low, high, where
    )


def finite_number(cell: str) -> float | None:
    """The finite number that a cell holds; None if it holds something else."""
    try:
        number = float(cell.replace("_", "?"))  # Python reads 1_0 as ten
    except ValueError:
        return None
    return number if math.isfinite(number) else None

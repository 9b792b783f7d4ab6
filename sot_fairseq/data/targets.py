"""Targets of a split, as the folder ``label`` of the data holds them: classes, sets of classes, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, RawLabelDataset
from torch import Tensor

from sot_base.errors import UsageError

__all__ = ["ClassDataset", "ClassSetDataset", "label_names", "read_classes", "read_numbers", "target_array"]


class ClassDataset(FairseqDataset):
    """Class numbers, translated to the model's order of labels.

    Args:
        classes: Class number of each row in the data's own order.
        translation: For each of them the model's number; changed in place when a checkpoint brings its own order.
    """

    def __init__(self, classes: np.ndarray, translation: np.ndarray) -> None:
        super().__init__()
        self.classes, self.translation = classes, translation

    def __getitem__(self, index: int) -> int:
        return int(self.translation[self.classes[index]])

    def __len__(self) -> int:
        return len(self.classes)

    def collater(self, samples: Sequence[int]) -> Tensor:
        return torch.tensor(samples, dtype=torch.long).unsqueeze(-1)


class ClassSetDataset(FairseqDataset):
    """Sets of classes, translated to the model's order of labels.

    Args:
        sets: Whether row i has class k of the data's own order, (rows, K), bool.
        translation: As for `ClassDataset`.
    """

    def __init__(self, sets: np.ndarray, translation: np.ndarray) -> None:
        super().__init__()
        self.sets, self.translation = sets, translation

    def __getitem__(self, index: int) -> np.ndarray:
        row = np.empty(self.sets.shape[1], dtype=bool)
        row[self.translation] = self.sets[index]
        return row

    def __len__(self) -> int:
        return len(self.sets)

    def collater(self, samples: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(samples))


def label_names(dictionary: Dictionary) -> list[str]:
    """The labels of a dictionary in order, without fairseq's special and filler entries."""
    names = dictionary.symbols[dictionary.nspecial :]
    return [name for name in names if name != "<mask>" and not name.startswith("madeupword")]


def read_classes(
    labels: Any, dictionary: Dictionary, translation: np.ndarray, multi_label: bool, where: str
) -> ClassDataset | ClassSetDataset:
    """Turn fairseq's binary labels into targets.

    Args:
        labels: Rows of label ids, each ending in ``</s>``.
        dictionary: Of the labels.
        translation: The model's number of each label.
        multi_label: Whether a row may have several labels, or none.
        where: The split and the path, for messages.

    Raises:
        UsageError: If a row has an unknown label, or more or less than one where one is expected.
    """
    first, names = dictionary.nspecial, label_names(dictionary)
    counts = np.asarray(labels.sizes) - 1
    ids = np.concatenate([np.empty(0, np.int64), *(labels[row][:-1].numpy() for row in range(len(labels)))])
    rows = np.repeat(np.arange(len(labels)), counts)
    wrong = np.flatnonzero((ids < first) | (ids >= first + len(names)))
    if len(wrong):
        raise UsageError(
            f"row {rows[wrong[0]] + 1} of {where} has the label {dictionary[int(ids[wrong[0]])]!r}; the labels are "
            f"{', '.join(names)}: run sot_fairseq.preprocess again"
        )
    if multi_label:
        sets = np.zeros((len(labels), len(names)), dtype=bool)
        sets[rows, ids - first] = True
        return ClassSetDataset(sets, translation)
    if (counts != 1).any():
        row = int(np.flatnonzero(counts != 1)[0])
        raise UsageError(f"row {row + 1} of {where} has {counts[row]} labels instead of one; give --multi-label")
    return ClassDataset(ids - first, translation)


def read_numbers(path: Path, width: int) -> RawLabelDataset:
    """Read the numbers of a regression, a line for each row.

    Raises:
        UsageError: If a line has other than `width` numbers.
    """
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                rows.append([float(value) for value in line.split()])
            except ValueError:
                rows.append([])
            if len(rows[-1]) != width:
                raise UsageError(f"expected {width} numbers, found {line.strip()!r}: {path}, line {number}; correct it")
    return RawLabelDataset(rows)


def target_array(targets: FairseqDataset) -> np.ndarray:
    """All targets of a split: class numbers (rows,), sets of classes (rows, K), bool, or numbers (rows,)."""
    values = np.array([targets[row] for row in range(len(targets))])
    return values if values.dtype == bool else values.reshape(-1)

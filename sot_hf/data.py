"""Rows of a task's TSV files, tokenized for a Hugging Face model."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from sot_base.errors import UsageError
from sot_base.names import split_names
from sot_text.glue import GLUE_TASKS, GlueTask, SplitFile, custom_task, get_task
from sot_text.labels import class_indices, class_sets, labels_of, parse_labels, regression_targets
from sot_text.splits import read_split_file
from sot_text.submission import INDEX_COLUMNS, submission_indices
from sot_text.tsv import read_tsv

__all__ = ["TextDataset", "read_split", "read_task", "task_with_labels", "row_indices"]

logger = logging.getLogger(__name__)


class TextDataset(Dataset):
    """Tokenized rows in memory.

    Args:
        encodings: For each row what the tokenizer gives: ``input_ids``, ``attention_mask``...
        targets: Class indices or numbers (rows,), or which classes each row has (rows, K); None where the file has no
            labels.
    """

    def __init__(self, encodings: Sequence[dict[str, list[int]]], targets: np.ndarray | None) -> None:
        self.encodings, self.targets = encodings, targets

    def __len__(self) -> int:
        return len(self.encodings)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = dict(self.encodings[index])
        if self.targets is not None:
            row["labels"] = self.targets[index].tolist()
        return row


def read_task(
    name: str | None,
    text_columns: str | None = None,
    label_column: str | None = None,
    labels: str | None = None,
    regression: bool = False,
    multi_label: bool = False,
) -> GlueTask:
    """The task that a command line names: one of GLUE's, or own data by its columns.

    Raises:
        UsageError: if it names none, or both kinds.
    """
    own = (text_columns, label_column, labels, regression or None, multi_label or None)
    if name:
        if any(option is not None for option in own):
            raise UsageError(f"options for custom data beside --task_name {name}: the command line; leave one kind out")
        return get_task(name)
    if not (text_columns and label_column):
        known = ", ".join(GLUE_TASKS)
        raise UsageError(f"no task: the command line; give --task_name ({known}), or --text_columns and --label_column")
    names = parse_labels(labels) if labels else ()
    return custom_task(split_names(text_columns, "--text_columns"), label_column, names, regression, multi_label)


def task_with_labels(task: GlueTask, folder: Path, saved: Sequence[str] | None) -> GlueTask:
    """The task with the names of its classes: GLUE's, those of the training file, or else those of a saved model.

    Raises:
        UsageError: if there is no training file and no saved model.
    """
    if task.labels or task.regression:
        return task
    if (folder / task.splits[0].file).is_file():
        table = read_split_file(task, task.splits[0], folder)
        return dataclasses.replace(task, labels=labels_of(table, task.splits[0].label_column, task.multi_label))
    if saved is None:
        raise UsageError(f"no {task.splits[0].file} to take the labels from: {folder.absolute()}; give --labels")
    return dataclasses.replace(task, labels=tuple(saved))


def read_split(
    task: GlueTask,
    split: SplitFile,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    max_rows: int | None = None,
) -> TextDataset:
    """Read, check and tokenize a split; longer samples are cut, the longer text of a pair first.

    Args:
        task: The task with its labels in the model's order.
        split: One of its files.
        folder: Where the file is.
        tokenizer: The model's tokenizer.
        max_length: Most tokens of a sample, special ones included.
        max_rows: Use the first so many rows alone; None: all.

    Raises:
        UsageError: as :func:`sot_text.tsv.read_tsv`, and for a label that is none of the task's. A test file's
            labels, where it has some, are not read.
    """
    table = read_split_file(task, split, folder)
    targets = None
    if not split.is_test:
        if task.regression:
            targets = regression_targets(table, split.label_column, task.label_range).astype(np.float32)
        elif task.multi_label:
            targets = class_sets(table, split.label_column, task.labels).astype(np.float32)
        else:
            targets = class_indices(table, split.label_column, task.labels)
    columns = [table.columns[column][:max_rows] for column in split.text_columns]
    encodings = _tokenize(tokenizer, columns, max_length)
    long = [row for row, encoding in enumerate(encodings) if len(encoding["input_ids"]) > max_length]
    if long:
        logger.warning("%s: %d of %d samples shortened to %d tokens", table.path, len(long), len(encodings), max_length)
        cut = _tokenize(tokenizer, [[texts[row] for row in long] for texts in columns], max_length, truncation=True)
        for row, encoding in zip(long, cut, strict=True):
            encodings[row] = encoding
    logger.info("%s: %d rows", table.path, len(encodings))
    return TextDataset(encodings, targets)


def row_indices(task: GlueTask, split: SplitFile, folder: Path) -> list[str]:
    """The index of each row of a test file, for the files of predictions.

    Raises:
        UsageError: as :func:`sot_text.submission.submission_indices`.
    """
    optional = [name for name in INDEX_COLUMNS if name not in split.text_columns]
    table = read_tsv(folder / split.file, columns=split.text_columns, header=split.header, optional=optional)
    return submission_indices(table, task)


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, columns: Sequence[list[str]], max_length: int, truncation: bool = False
) -> list[dict[str, list[int]]]:
    limit: dict[str, Any] = {"truncation": "longest_first", "max_length": max_length} if truncation else {}
    batch = tokenizer(*columns, **limit, verbose=False)
    names = list(batch)
    return [dict(zip(names, cells, strict=True)) for cells in zip(*(batch[name] for name in names), strict=True)]
